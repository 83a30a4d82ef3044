//! Hides what looks like a well-known kind of token, in what a person or a model is shown.
//!
//! Each kind has a small machine of its own that reads every byte once and remembers little. A machine masks
//! what it has made sure of, and says from where on it is undecided; the text goes out up to the first such
//! place. The machines do not know of each other, so the result is the union of what each hides, wherever
//! chunks are cut.
//!
//! Beginnings that tell the kind (`ghp_`, `Bearer`) stay readable, and so does everything that only *might*
//! be a secret: a view that hides ordinary hashes, paths and counters would be worth little.

mod assignment;
mod authorization;
mod jwt;
mod private_key;
mod token;
mod url;

use crate::MASK;

/// Masks one stream, chunk by chunk.
#[derive(Clone, Debug, Default)]
pub struct ViewMasker {
    open: Open,
    words: Words,
    token: token::Machine,
    jwt: jwt::Machine,
    url: url::Machine,
    authorization: authorization::Machine,
    assignment: assignment::Machine,
    private_key: private_key::Machine,
}

impl ViewMasker {
    /// A masker at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends to `out` all that are decided now: every byte once, in order, masked
    /// or as it was.
    ///
    /// At most some 1,000 bytes are held back, and only where something like a secret has begun.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        for byte in chunk {
            self.step(*byte);
        }
        let holds = [
            self.token.hold(),
            self.jwt.hold(),
            self.url.hold(),
            self.authorization.hold(),
            self.assignment.hold(),
            self.private_key.hold(),
        ];
        self.open.emit(holds.into_iter().flatten().min(), out);
    }

    /// Says that the stream is over, or that nobody can wait for its next bytes, and appends what was held
    /// back. The masker starts anew.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        self.token.end(&mut self.open);
        self.url.end(&mut self.open);
        self.open.emit(None, out);
        *self = Self::default();
    }

    fn step(&mut self, byte: u8) {
        let begins = self.words.step(byte);
        let open = &mut self.open;
        let at = open.add(byte);
        self.token.step(at, byte, begins, open);
        self.jwt.step(at, byte, begins, open);
        self.url.step(at, byte, open);
        self.authorization.step(at, byte, open);
        self.assignment.step(at, byte, begins, open);
        self.private_key.step(at, byte, open);
    }
}

/// Masks a text that is complete.
#[must_use]
pub fn for_view(text: &[u8]) -> Vec<u8> {
    let mut masker = ViewMasker::new();
    let mut out = Vec::with_capacity(text.len());
    masker.push(text, &mut out);
    masker.flush(&mut out);
    out
}

/// The bytes that have not gone out yet, by their place in the stream.
#[derive(Clone, Debug, Default)]
struct Open {
    bytes: Vec<u8>,
    start: u64,
}

impl Open {
    #[inline]
    fn add(&mut self, byte: u8) -> u64 {
        self.bytes.push(byte);
        self.start + self.bytes.len() as u64 - 1
    }

    /// Masks from `from` up to and without `to`. A machine that masks says in time from where on it might.
    fn mask(&mut self, from: u64, to: u64) {
        let place = |at: u64| (at.saturating_sub(self.start) as usize).min(self.bytes.len());
        let (from, to) = (place(from), place(to));
        if from < to {
            self.bytes[from..to].fill(MASK);
        }
    }

    fn emit(&mut self, hold: Option<u64>, out: &mut Vec<u8>) {
        let decided = hold.map_or(self.bytes.len(), |at| at.saturating_sub(self.start) as usize);
        out.extend(self.bytes.drain(..decided.min(self.bytes.len())));
        self.start += decided as u64;
    }
}

/// Letters, digits, `_` and `-`: what names and most tokens are made of.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Tells where words begin, also behind what only looks like one: the `n` of an escaped newline, the end of a
/// colour, a percent-encoded sign.
#[derive(Clone, Debug, Default)]
struct Words {
    inside: bool,
    escape: Escape,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    Backslash,
    /// So many hexadecimal digits end it.
    Digits(u8),
    Esc,
    Csi,
}

impl Words {
    /// Whether `byte` begins a word.
    #[inline]
    fn step(&mut self, byte: u8) -> bool {
        let begins = !self.inside && is_word(byte);
        let (escape, ended) = match (self.escape, byte) {
            (Escape::Backslash, b'n' | b'r' | b't' | b'b' | b'f') => (Escape::None, true),
            (Escape::Backslash, b'u') => (Escape::Digits(4), false),
            (Escape::Backslash, b'x') => (Escape::Digits(2), false),
            (Escape::Digits(left), _) if byte.is_ascii_hexdigit() => match left {
                1 => (Escape::None, true),
                _ => (Escape::Digits(left - 1), false),
            },
            (Escape::Esc, b'[') => (Escape::Csi, false),
            (Escape::Csi, b'0'..=b'?') => (Escape::Csi, false),
            (Escape::Csi, b'@'..=b'~') => (Escape::None, true),
            (_, b'\\') => (Escape::Backslash, false),
            (_, b'%') => (Escape::Digits(2), false),
            (_, b'\x1b') => (Escape::Esc, false),
            _ => (Escape::None, false),
        };
        self.escape = escape;
        self.inside = is_word(byte) && !ended;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a text in which the part to be masked stands between `⟦` and `⟧`.
    #[track_caller]
    fn check(marked: &str) {
        let text = marked.replace(['⟦', '⟧'], "");
        let mut expected = String::new();
        let mut inside = false;
        for character in marked.chars() {
            match character {
                '⟦' => inside = true,
                '⟧' => inside = false,
                '\n' => expected.push('\n'),
                other if inside => expected.extend(std::iter::repeat_n('*', other.len_utf8())),
                other => expected.push(other),
            }
        }
        assert_eq!(String::from_utf8(for_view(text.as_bytes())).unwrap(), expected, "\nfor {text}");
        // The same by single bytes.
        let mut masker = ViewMasker::new();
        let mut out = Vec::new();
        for byte in text.as_bytes() {
            masker.push(&[*byte], &mut out);
        }
        masker.flush(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "\nby bytes for {text}");
    }

    /// Letters and digits without meaning, so that no scanner takes these examples for the real thing.
    fn filler(len: usize) -> String {
        "Ab3dE6gH1jKlM0pQr5".chars().cycle().take(len).collect()
    }

    #[test]
    fn well_known_tokens_are_masked() {
        let x = filler;
        let upper = x(16).to_uppercase();
        let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
        for text in [
            format!("token ghp_⟦{}⟧ in text", x(36)),
            format!("gho_⟦{}⟧", x(36)),
            format!("(ghs_⟦{}⟧)", x(40)),
            format!("ghu_⟦{}⟧,ghr_⟦{}⟧", x(36), x(36)),
            format!("https://github_pat_⟦{}_{}⟧@github.com/a/b", x(22), x(59)),
            format!("AKIA⟦{upper}⟧"),
            format!("aws_access_key_id = ASIA⟦{upper}⟧\n"),
            format!("xoxb-⟦123456789012-{}⟧", x(24)),
            format!("xoxp-⟦1-2-3-{}⟧!", x(32)),
            format!("sk-⟦{}⟧", x(48)),
            format!("sk-⟦proj-{}-_{}⟧", x(40), x(40)),
            format!("key sk-ant-⟦api03-{}-{}AA⟧", x(60), x(30)),
            format!("q=1&k=AIza⟦{}⟧&r", x(35)),
            format!("glpat-⟦{}⟧", x(20)),
            format!("//registry.npmjs.org/:_authToken=⟦npm_{}⟧", x(36)),
            format!("pypi-⟦AgEIcHlwaS5vcmc{}⟧", x(60)),
            format!("'sk_live_⟦{}⟧'", x(24)),
            format!("rk_test_⟦{}⟧", x(24)),
            format!("hf_⟦{}⟧", x(34)),
            format!("eyJ⟦hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{}⟧ expired", x(43)),
            "Authorization: Bearer ⟦abc.def-123~x/+==⟧\r\n".to_owned(),
            "curl -H 'authorization: basic ⟦dXNlcjpwYXNz⟧' url".to_owned(),
            r#"{"Authorization":"token ⟦abcdef⟧"}"#.to_owned(),
            "proxy-authorization: Bearer  ⟦opaque⟧".to_owned(),
            "postgres://app:⟦p4ss:w,rd⟧@db.internal:5432/app".to_owned(),
            "git clone https://x-access-token:⟦v1.abc⟧@github.com/a/b.git".to_owned(),
            "redis://:⟦a@b⟧@localhost".to_owned(),
            format!("API_KEY=⟦{uuid}⟧"),
            format!("export SERVICE_TOKEN=\"⟦{uuid}⟧\""),
            format!(r#"{{"client_secret": "⟦{uuid}⟧", "x": 1}}"#),
            format!("dbPassword: ⟦hunter22⟧\ntokenKey1 = ⟦{uuid}⟧"),
            format!(r#"{{\"auth_token\": \"⟦{uuid}⟧\"}}"#),
            "spring.datasource.password=⟦tr0ub4dor⟧&x=3".to_owned(),
            format!("\\nghp_⟦{}⟧", x(36)),
            format!("\u{1b}[32mghp_⟦{}⟧\u{1b}[0m", x(36)),
            format!("a%3Dghp_⟦{}⟧ \\u003dglpat-⟦{}⟧", x(36), x(20)),
            "-----BEGIN PRIVATE KEY-----\n⟦MIIEvQ/+⟧\n⟦AbCd==⟧\n-----END PRIVATE KEY-----\nafter".to_owned(),
            "-----BEGIN RSA PRIVATE KEY-----\n⟦Proc-Type: 4,ENCRYPTED⟧\n⟦DEK-Info: AES-128-CBC,00FF⟧\n\n⟦MIIE⟧\n\
             -----END RSA PRIVATE KEY-----"
                .to_owned(),
            r#""-----BEGIN EC PRIVATE KEY-----⟦\nMHcCAQEE\n⟧-----END EC PRIVATE KEY-----\n""#.to_owned(),
            "-----BEGIN OPENSSH PRIVATE KEY-----\n⟦b3BlbnNzaC1rZXktdjEA⟧\n⟦AAAA⟧".to_owned(),
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\n⟦Version: GnuPG v2.0 (x)⟧\n\n⟦lQOYBF⟧\n-----END PGP".to_owned(),
        ] {
            check(&text);
        }
    }

    #[test]
    fn ordinary_text_is_untouched() {
        let x = filler;
        for text in [
            "commit 3f786850e387550fdab836ed7e6dc881de23001b".to_owned(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
            "request 3f2504e0-4f89-41d3-9a0c-0305e82c3301 done".to_owned(),
            "ghp_short and ghp_ and ghp_0123-not".to_owned(),
            format!("xghp_{} is a word", x(36)),
            "AKIA is a prefix; AKIAIOSFODNN7 is short".to_owned(),
            format!("AKIA{} is long", x(20).to_uppercase()),
            "sk-learn-something-that-is-a-long-name and sk-fading-circle-dots-animation".to_owned(),
            format!("task-{} disk-{}", x(40), x(40)),
            "npm_config_registry=https://registry.npmjs.org/".to_owned(),
            "pypi-publish pypi-AgE".to_owned(),
            "xoxo-hugs-and-kisses-123456 xoxb-short".to_owned(),
            "AIzaShort glpat-x hf_hub_download sk_live_x".to_owned(),
            "eyJhbGciOiJIUzI1NiJ9 alone, eyJhbGci.notjson.x".to_owned(),
            "authorization: none; Authorization: Bearer <token>; Authorization: Bearer $TOKEN".to_owned(),
            "the bearer of this letter; Bearer authentication is used".to_owned(),
            "http://localhost:8080/path user@example.com ssh://git@host:22/x".to_owned(),
            "https://example.com/a:b@c http://[::1]:80 see http://a:b".to_owned(),
            "time 12:30:45 10:20 a:b@c".to_owned(),
            "KEY=value PRIMARY_KEY=id keyboard=abc123def456ghi789jkl".to_owned(),
            "max_tokens=4096 token_count=1234567890123456 total tokens: 12345678".to_owned(),
            "TOKEN_FILE=/run/secrets/abc123def456ghi7 TOKEN=/run/secrets/abc123def456ghi7".to_owned(),
            "password=true password: required PASSWORD= PASSWORD=\"\" password".to_owned(),
            "PASSWORD=$DB_PASSWORD_123 SECRET=${{ secrets.X1 }} TOKEN=<your-token-1234567>".to_owned(),
            "if token == abc123def456ghi789jkl { Token::new1234567890abcdef }".to_owned(),
            "idempotency_key=3f2504e0-4f89-41d3-9a0c-0305e82c3301".to_owned(),
            r#"{"idempotency_key": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "key": "v1-linux-3f2504e04f89"}"#
                .to_owned(),
            "cache-key=linux-cargo-3f2504e04f8941d3 public_key=3f2504e04f8941d39a0c0305".to_owned(),
            "next_page_token=abc123def456ghi789 monkey=abc123def456ghi789jkl".to_owned(),
            "secret santa, secrets: 12, keys: 34, SECRET_NAME=prod-db-password-v2".to_owned(),
            "password=config.get_password_v2()".to_owned(),
            "grep 'BEGIN PRIVATE KEY' finds -----BEGIN PRIVATE KEY----- in files".to_owned(),
            "-----BEGIN CERTIFICATE-----\nMIIEvQ\n-----END CERTIFICATE-----".to_owned(),
            "-----BEGIN PUBLIC KEY-----\nMIIEvQ\n-----END PUBLIC KEY-----".to_owned(),
            "--------------------------------\nBEGIN PRIVATE KEY-----\nx".to_owned(),
            "-----BEGIN PRIVATE KEY-----\n[not a key]\nordinary text".to_owned(),
            "grüße \u{1F600} \u{0} \u{7f} 日本語".to_owned(),
        ] {
            check(&text);
        }
    }

    #[test]
    fn nothing_is_held_back_of_ordinary_output() {
        let mut masker = ViewMasker::new();
        for line in ["Compiling foo v0.1.0 (/src/foo)\n", "progress 10%\r", "$ ", "key ", "http://x/ ", "a=b"]
        {
            let mut out = Vec::new();
            masker.push(line.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), line);
        }
    }

    #[test]
    fn what_is_held_back_is_bounded_whatever_comes() {
        let starts = [
            "sk-",
            "ghp_",
            "eyJ",
            "AKIA",
            "http://a:",
            "http://",
            "Authorization: Bearer ",
            "API_KEY=",
            "PASSWORD=\"",
            "-----BEGIN PRIVATE KEY-----\n",
            "-----BEGIN ",
            "eyJa.eyJ",
            "api_key",
            "x",
        ];
        for start in starts {
            for filler in ["a", "-", "A", "1", "=", ":", " ", "@", "eyJ", ".", "\\", "\"", "_", "BEGIN "] {
                let mut masker = ViewMasker::new();
                let mut out = Vec::new();
                let text = format!("{start}{}", filler.repeat(20_000));
                masker.push(text.as_bytes(), &mut out);
                assert!(text.len() - out.len() <= 1100, "{start} {filler}: {}", text.len() - out.len());
                masker.flush(&mut out);
                assert_eq!(out.len(), text.len());
            }
        }
    }

    #[test]
    fn a_key_without_an_end_hides_only_so_much() {
        let text = format!("-----BEGIN PRIVATE KEY-----\n{}", "MIIE ".repeat(20_000));
        let masked = for_view(text.as_bytes());
        assert!(masked.ends_with(b"MIIE MIIE "));
    }
}
