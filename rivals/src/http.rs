//! As much of HTTP/1.1 as asking a server on this machine takes: one request, one connection.

use outlast_qualify::subject::{Answer, Trouble};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Asks, and waits for the whole answer.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&str>,
    within: Duration,
) -> Answer<Reply> {
    let began = Instant::now();
    let trouble = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => Trouble::no_answer(began.elapsed()),
        _ => Trouble::unavailable(format!("{address}: {error}")),
    };
    let mut connection = TcpStream::connect_timeout(&address, within).map_err(trouble)?;
    connection.set_nodelay(true).map_err(trouble)?;
    let body = body.unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).map_err(trouble)?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let left = within.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(Trouble::no_answer(began.elapsed()));
        }
        connection.set_read_timeout(Some(left)).map_err(trouble)?;
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(trouble(error)),
        }
    }
    parse(&answer)
        .ok_or_else(|| Trouble::unavailable(format!("{address}: its answer was cut off, or is no HTTP")))
}

/// A whole answer, at the end of its connection; `None` where it is not whole.
fn parse(answer: &[u8]) -> Option<Reply> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |name: &str| {
        let found = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        found
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .next()
    };
    let rest = &answer[end + 4..];
    let body = match (header("transfer-encoding"), header("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => unchunk(rest)?,
        (_, Some(length)) => rest.get(..length.parse().ok()?)?.to_vec(),
        _ => rest.to_vec(),
    };
    Some(Reply { status, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_or_none() {
        let reply = |status, body: &str| Some(Reply { status, body: body.as_bytes().to_vec() });
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", reply(200, "ab")),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", None),
            (
                "HTTP/1.1 404 N\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n",
                reply(404, "abc"),
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", None),
            ("HTTP/1.1 200 OK\r\n", None),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }
}
