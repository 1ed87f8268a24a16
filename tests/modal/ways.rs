//! The way to Modal and to its gateway as users have it: encrypted, through proxies; and what goes wrong on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand_in::StandIn;

/// A name that only the proxy can look up.
const NAME: &str = "modal.stand-in.test";

/// An authority, and what it made out.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("authority.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    /// What SSL_CERT_FILE names.
    fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// A stand-in with a certificate of this authority's; the proxy leads to it under any name.
    fn stand_in(&self, visible: &Path, host: &str, names: &[&str], until: i32) -> StandIn {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |name: &str, text: String| {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (certificate, key) = (
            file("server.pem", certificate.pem()),
            file("key.pem", key.serialize_pem()),
        );
        StandIn::start_with(visible, &["--certificate", &certificate, "--key", &key, "--host", host])
    }
}

/// Both ways to a sandbox: with an account, and through the gateway.
const WAYS: [&str; 2] = ["direct", "managed"];

/// What a cell on a target there comes to.
fn run(stand_in: &StandIn, way: &str, variables: &[(&str, &str)]) -> Value {
    let home = tempfile::tempdir().unwrap();
    let account = match way {
        "direct" => stand_in.variables(),
        _ => stand_in.gateway_variables(),
    };
    let done = Command::new(env!("CARGO_BIN_EXE_talaria"))
        .args(["run", "--on", "modal", "--json", "-c", "print(6 * 7)"])
        .env_clear()
        .env("HOME", home.path())
        .envs(account)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(!shown.contains("pass-word"), "{shown}");
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {shown}"))
}

fn fails(outcome: &Value, words: &[&str]) {
    let error = outcome["error"].as_str().unwrap_or_default();
    assert_eq!(outcome["status"], "error", "{outcome}");
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
}

fn succeeds(outcome: &Value) {
    assert_eq!(outcome["output"], "42\n", "{outcome}");
}

#[test]
fn what_is_on_this_machine_is_reached_encrypted_and_without_a_proxy() {
    if !crate::stand_in::can_be() {
        return;
    }
    let (authority, visible) = (Authority::new(), tempfile::tempdir().unwrap());
    let stand_in = authority.stand_in(visible.path(), "localhost", &["localhost"], 2100);
    let trusted = authority.file().display().to_string();
    stand_in.ask("POST", "/proxy", Some(json!({"refuses": 403})));
    let proxy = stand_in.proxy_variable("");
    for way in WAYS {
        succeeds(&run(
            &stand_in,
            way,
            &[("SSL_CERT_FILE", &trusted), ("HTTPS_PROXY", &proxy)],
        ));
    }
    assert_eq!(stand_in.ask("GET", "/proxy", None), json!([]));
}

#[test]
fn a_proxy_leads_to_the_control_plane_the_worker_and_the_gateway() {
    if !crate::stand_in::can_be() {
        return;
    }
    let (authority, visible) = (Authority::new(), tempfile::tempdir().unwrap());
    let stand_in = authority.stand_in(visible.path(), NAME, &[NAME], 2100);
    let trusted = authority.file().display().to_string();
    let login = json!({"login": "user:pass-word"});
    for (variable, login_of, asked, words) in [
        ("HTTPS_PROXY", "", json!({}), None),
        ("https_proxy", "user:pass-word@", login.clone(), None),
        ("ALL_PROXY", "user:pass-word@", login.clone(), None),
        (
            "HTTPS_PROXY",
            "",
            login.clone(),
            Some(["(https_proxy) wants a user and a password", "USER:PASSWORD@127.0.0.1"]),
        ),
        (
            "HTTPS_PROXY",
            "other:pass-word@",
            login,
            Some(["does not accept the user and password", "correct them"]),
        ),
        (
            "HTTPS_PROXY",
            "",
            json!({"refuses": 403}),
            Some(["refuses to connect to modal.stand-in.test", "no_proxy"]),
        ),
        (
            "HTTPS_PROXY",
            "ftp",
            json!({}),
            Some(["https_proxy (or HTTPS_PROXY) names no proxy", "http://HOST:PORT"]),
        ),
    ] {
        stand_in.ask("POST", "/proxy", Some(asked));
        let proxy = match login_of {
            "ftp" => "ftp://proxy".to_owned(),
            login => stand_in.proxy_variable(login),
        };
        for way in WAYS {
            let outcome = run(&stand_in, way, &[("SSL_CERT_FILE", &trusted), (variable, &proxy)]);
            match words {
                Some(words) => fails(&outcome, &words),
                None => succeeds(&outcome),
            }
        }
        let asked = stand_in.ask("GET", "/proxy", None);
        let places: std::collections::BTreeSet<&str> = asked
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["to"].as_str().unwrap())
            .collect();
        if words.is_none() {
            assert_eq!(places.len(), 3, "{places:?}");
        }
    }
    assert_eq!(stand_in.living(), Vec::<Value>::new());
}

#[test]
fn a_certificate_that_cannot_be_trusted_says_why_and_what_to_do() {
    if !crate::stand_in::can_be() {
        return;
    }
    let (authority, other, visible) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    for (trusts, names, until, words) in [
        (
            &other,
            ["localhost"],
            2100,
            ["is signed by nobody who is trusted here", "SSL_CERT_FILE"],
        ),
        (&authority, ["localhost"], 2001, ["has expired", "clock"]),
        (
            &authority,
            ["elsewhere.test"],
            2100,
            ["is made out to another name", "correct the address"],
        ),
    ] {
        let stand_in = authority.stand_in(visible.path(), "localhost", &names, until);
        let trusted = trusts.file().display().to_string();
        for way in WAYS {
            fails(&run(&stand_in, way, &[("SSL_CERT_FILE", &trusted)]), &words);
        }
    }
    // One that is not encrypted where it should be.
    let plain = StandIn::start(visible.path());
    let trusted = authority.file().display().to_string();
    let variables = plain.variables();
    let address = variables.iter().find(|(name, _)| name == "MODAL_SERVER_URL").unwrap();
    let encrypted = address.1.to_str().unwrap().replace("http:", "https:");
    fails(
        &run(
            &plain,
            "direct",
            &[("SSL_CERT_FILE", &trusted), ("MODAL_SERVER_URL", &encrypted)],
        ),
        &["no encrypted connection to 127.0.0.1", "address and its port"],
    );
}
