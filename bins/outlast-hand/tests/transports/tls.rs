//! TLS and tokens, from end to end.

use crate::ground::{Ground, LONG};
use crate::support::*;
use outlast_wire::address::{DialError, DialOptions, dial};
use outlast_wire::client::{Client, Read, Until, request_id};
use outlast_wire::tls::{Identity, Trust};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const ANY_PORT: &str = "tls:127.0.0.1:0";

/// A runner that listens by TLS, with the tokens of the ground's file.
fn with_tokens(ground: &Ground) -> Runner {
    let tokens = ground.file("tokens").display().to_string();
    Runner::serve(ground, &["--listen", ANY_PORT, "--token-file", &tokens])
}

/// Puts other lines into the token file, as a person's editor does: another file takes its name.
fn rewrite(ground: &Ground, change: impl Fn(Vec<String>) -> Vec<String>) {
    let (file, aside) = (ground.file("tokens"), ground.file("tokens.new"));
    let lines = std::fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
    std::fs::copy(&file, &aside).unwrap();
    std::fs::write(&aside, change(lines).iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    std::fs::rename(&aside, &file).unwrap();
}

async fn is_refused(client: &Client, what: &str) {
    let problem = problem_of(client.list(None, 10).await);
    assert_eq!((problem.status, problem.code.as_str()), (401, "UNAUTHENTICATED"), "{what}: {problem:?}");
}

#[test]
fn another_certificate_than_the_pinned_one_is_named() {
    let ground = Ground::new("tls-pin");
    let token = new_token(&ground, &[]);
    let runner = with_tokens(&ground);
    let other = certificate(&ground, "other").fingerprint();
    play(async {
        let way = Way::tls(runner.tls(), other, Some(&token));
        let error = dial(&way.address, &way.options).await.unwrap_err();
        let told = error.to_string();
        let DialError::Handshake { seen, .. } = error else { panic!("{error}") };
        assert_eq!(seen, Some(runner.pin()));
        assert!(told.contains(&runner.pin().to_string()) && told.contains(&other.to_string()), "{told}");
        // With both pinned, as while a certificate is changed, it is reached.
        let pins = Trust::Pins(vec![other, runner.pin()]);
        let way = Way { options: DialOptions { trust: Some(pins), ..way.options }, ..way };
        way.client().await;
        // The certificate is kept: a runner that is started again shows the same.
        let (pin, at) = (runner.pin(), runner.tls());
        runner.end();
        let runner = with_tokens(&ground);
        assert_eq!(runner.pin(), pin);
        assert_ne!(runner.tls().port(), 0, "before, it was {at}");
        runner.end();
    });
}

#[test]
fn tokens_are_good_from_the_next_call_on_and_as_soon_no_more() {
    let ground = Ground::new("tls-tokens");
    let token = new_token(&ground, &["--name", "first"]);
    let runner = with_tokens(&ground);
    let (at, pin) = (runner.tls(), runner.pin());
    let with = |token: &str| Way::tls(at, pin, Some(token));
    play(async {
        let nobody = Way::tls(at, pin, None).try_client().await.unwrap_err();
        assert!(nobody.0.contains("no token"), "{nobody:?}");
        for wrong in ["x", "olt_", &format!("{token}x"), &token[..token.len() - 1], &token.to_uppercase()] {
            let stranger = with(wrong).try_client().await.unwrap_err();
            assert!(stranger.0.contains("not good"), "{stranger:?}");
        }
        let first = with(&token).client().await;
        let id = started(&first, &sh(&ground.file("work"), "k", "exec sleep 600")).await.job_id;

        // A further one needs no restart; the old one goes, and with it every call on connections that are open.
        let second_token = new_token(&ground, &["--name", "second"]);
        let second = with(&second_token).client().await;
        rewrite(&ground, |lines| lines.into_iter().filter(|line| !line.contains("name=first")).collect());
        is_refused(&first, "revoked").await;
        let stop = first.stop(&request_id().unwrap(), id, &stop("s")).await;
        assert_eq!(problem_of(stop).code, "UNAUTHENTICATED");
        assert!(with(&token).try_client().await.is_err());
        stop_now(&second, id).await;

        // One that was out of date when it was made, and one whose time comes while its connection is open.
        let stale = with(&new_token(&ground, &["--expires", "0"])).try_client().await.unwrap_err();
        assert!(stale.0.contains("not good"), "{stale:?}");
        let brief = with(&new_token(&ground, &["--expires", "3"])).client().await;
        let end = Instant::now() + LONG;
        while brief.list(None, 10).await.is_ok() {
            assert!(Instant::now() < end, "the token does not expire");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        is_refused(&brief, "expired").await;

        // Without the file nobody is anybody, until it is there again.
        std::fs::rename(ground.file("tokens"), ground.file("kept")).unwrap();
        is_refused(&second, "the file is gone").await;
        std::fs::rename(ground.file("kept"), ground.file("tokens")).unwrap();
        second.list(None, 10).await.unwrap();
    });
    runner.end();
}

#[test]
fn a_token_of_a_scope_opens_no_other() {
    let ground = Ground::new("tls-scopes");
    let whole = new_token(&ground, &[]);
    let team = new_token(&ground, &["--scope", "team"]);
    let runner = with_tokens(&ground);
    let way = |token: &str, scope| Way::tls(runner.tls(), runner.pin(), Some(token)).scope(scope);
    play(async {
        let owner = way(&whole, "teams").client().await;
        let id = started(&owner, &sh(&ground.file("work"), "k", "echo theirs; exec sleep 600")).await.job_id;
        for scope in ["default", "teams", "tea", "Team"] {
            let other = way(&team, scope).client().await;
            for refused in [
                problem_of(other.job(id, Until::Now, Duration::ZERO).await),
                problem_of(other.read(id, Read::default()).await),
                problem_of(other.stop(&request_id().unwrap(), id, &stop("s")).await),
                problem_of(other.list(None, 10).await),
            ] {
                assert_eq!((refused.status, refused.code.as_str()), (404, "NO_SUCH_SCOPE"), "{scope}");
            }
        }
        for scope in ["team", "team/a", "team:b"] {
            let member = way(&team, scope).client().await;
            assert_eq!(member.list(None, 10).await.unwrap().jobs, []);
            let stopped = member.stop(&request_id().unwrap(), id, &stop("s")).await;
            assert_eq!(problem_of(stopped).code, "NO_SUCH_JOB", "{scope}");
            let own = started(&member, &sh(&ground.file("work"), "k", "true")).await.job_id;
            assert_ne!(own, id, "the same key in another scope is another job");
            settled(&member, own).await;
        }
        stop_now(&owner, id).await;
    });
    runner.end();
}

#[test]
fn client_certificates_are_required_where_that_was_said() {
    let ground = Ground::new("tls-client-pin");
    let (known, stranger) = (certificate(&ground, "known"), certificate(&ground, "stranger"));
    let pin = known.fingerprint().to_string();
    let runner = Runner::serve(&ground, &["--listen", ANY_PORT, "--client-pin", &pin]);
    let way = |identity: Option<Identity>| {
        let way = Way::tls(runner.tls(), runner.pin(), None);
        Way { options: DialOptions { identity, ..way.options }, ..way }
    };
    play(async {
        let client = way(Some(known)).client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", "true")).await.job_id;
        settled(&client, id).await;
        let none = first_read(&way(None)).await;
        assert!(none.contains("wants this end to show a certificate"), "{none:?}");
        let stranger_pin = stranger.fingerprint().to_string();
        let stranger = way(Some(stranger));
        let other = first_read(&stranger).await;
        assert!(other.contains("does not trust") && other.contains(&stranger_pin), "{other:?}");
        assert!(stranger.try_client().await.is_err() && way(None).try_client().await.is_err());
        // A token is no way round it, and none that the runner would know.
        let mut by_token = way(None);
        by_token.options.token = Some("olt_x".into());
        assert!(by_token.try_client().await.is_err());
    });
    runner.end();
}

#[test]
fn certificates_of_an_authority_are_enough() {
    let ground = Ground::new("tls-client-ca");
    let authority = Authority::new(&ground, "authority");
    let signed = authority.sign(&ground, "signed");
    let stranger = Authority::new(&ground, "stranger").sign(&ground, "strange");
    // Another one that has taken its name.
    let forged = Authority::named("authority", &ground, "forger").sign(&ground, "forged");
    let ca = authority.file.display().to_string();
    let runner = Runner::serve(&ground, &["--listen", ANY_PORT, "--client-ca", &ca]);
    let way = |identity: &Identity| {
        let way = Way::tls(runner.tls(), runner.pin(), None);
        Way { options: DialOptions { identity: Some(identity.clone()), ..way.options }, ..way }
    };
    play(async {
        way(&signed).client().await.list(None, 1).await.unwrap();
        let refused = first_read(&way(&stranger)).await;
        assert!(refused.contains("does not trust"), "{refused:?}");
        let refused = first_read(&way(&forged)).await;
        assert!(refused.contains("alert"), "{refused:?}");
        assert!(way(&stranger).try_client().await.is_err() && way(&forged).try_client().await.is_err());
    });
    runner.end();
}

/// What the first read says, where in TLS 1.3 a client learns that its certificate is refused.
async fn first_read(way: &Way) -> String {
    use tokio::io::AsyncReadExt as _;
    match dial(&way.address, &way.options).await {
        Err(error) => error.to_string(),
        Ok(mut stream) => match stream.read_u8().await {
            Err(error) => error.to_string(),
            // The runner's HTTP begins by itself.
            Ok(_) => panic!("{}: it is let in", way.address),
        },
    }
}

/// Signs certificates.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    file: std::path::PathBuf,
}

impl Authority {
    fn new(ground: &Ground, name: &str) -> Authority {
        Authority::named(name, ground, name)
    }

    fn named(subject: &str, ground: &Ground, name: &str) -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, subject);
        let file = ground.file(name);
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: rcgen::Issuer::new(params, key), file }
    }

    fn sign(&self, ground: &Ground, name: &str) -> Identity {
        use std::os::unix::fs::OpenOptionsExt as _;
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (chain, secret) = (ground.file(&format!("{name}.pem")), ground.file(&format!("{name}.key")));
        std::fs::write(&chain, certificate.pem()).unwrap();
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create_new(true).mode(0o600).open(&secret).unwrap();
        file.write_all(key.serialize_pem().as_bytes()).unwrap();
        Identity::from_files(&chain, &secret).unwrap()
    }
}

#[test]
fn what_is_not_tls_fails_quickly_and_harms_nobody() {
    let ground = Ground::new("tls-plain");
    let token = new_token(&ground, &[]);
    let runner = with_tokens(&ground);
    for bytes in
        [&b"POST /hello HTTP/1.1\r\nhost: hand\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 600]]
    {
        let began = Instant::now();
        let mut plain = TcpStream::connect(runner.tls()).unwrap();
        plain.set_read_timeout(Some(LONG)).unwrap();
        plain.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(!answer.starts_with(b"HTTP"), "an answer in clear");
    }
    // One that says nothing at all is let go once the time for the handshake is over.
    let began = Instant::now();
    let mut mute = TcpStream::connect(runner.tls()).unwrap();
    mute.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(mute.read(&mut [0]).unwrap_or(0), 0);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    play(async { Way::tls(runner.tls(), runner.pin(), Some(&token)).client().await });
    runner.end();
}

#[test]
fn a_runner_that_anybody_could_call_does_not_start() {
    let ground = Ground::new("tls-refusals");
    let missing = ground.file("missing").display().to_string();
    let open = ground.file("open");
    std::fs::write(&open, "").unwrap();
    done(tool("chmod").arg("644").arg(&open));
    let open = open.display().to_string();
    let rows: &[(&[&str], i32, &str)] = &[
        (
            &["--listen", ANY_PORT],
            2,
            "nothing says who may call: give --token-file, --client-ca or --client-pin",
        ),
        (&["--listen", "tcp:127.0.0.1:0"], 2, "plain TCP is not offered"),
        (&["--listen", "127.0.0.1:0"], 2, "plain TCP is not offered"),
        (&["--listen", "tls:localhost:7443"], 2, "tls:IP:PORT"),
        (&["--listen", ANY_PORT, "--token-file", &missing], 1, "missing"),
        (&["--listen", ANY_PORT, "--token-file", &open], 1, "chmod 600"),
        (&["--listen", ANY_PORT, "--client-pin", "sha256:12"], 2, "64 hexadecimal digits"),
        (&["--listen", ANY_PORT, "--client-ca", &open], 1, "no certificate"),
        (&["--dial", "127.0.0.1:1"], 2, "give --dial-ca or --dial-pin"),
        (&["--dial", "127.0.0.1", "--dial-pin", &format!("sha256:{}", "0".repeat(64))], 2, "say HOST:PORT"),
    ];
    for (options, code, why) in rows {
        let mut refused = mortal(&serve(ground.home.path(), options));
        let output =
            tool("timeout").args(["20"]).arg(refused.get_program()).args(refused.get_args()).output();
        let output = output.unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{options:?}: {told}");
        assert!(told.contains(why), "{options:?}: {told}");
        assert_eq!(output.stdout, b"", "{options:?}");
        refused.stdin(std::process::Stdio::null());
    }
}
