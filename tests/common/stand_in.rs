//! A stand-in of Modal (`tests/rigs/modal/`), started for the tests of one process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The only token that it accepts.
pub(crate) const TOKEN: (&str, &str) = ("ak-stand-in-id-0123456789", "as-stand-in-secret-0123456789");

/// The only token that its gateway accepts.
pub(crate) const GATEWAY_TOKEN: &str = "gw-stand-in-token-0123456789";

/// Time in which it must answer what it is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Time in which it must be gone.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A stand-in. It goes with this, and at the latest with the process that started it.
pub(crate) struct StandIn {
    process: Child,
    control: String,
    gateway: String,
    admin: String,
    proxy: String,
}

/// The interpreter with Modal's own client: `TALARIA_TEST_MODAL_PYTHON`, else that of the environment that `tests/run` makes.
fn python() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os("TALARIA_TEST_MODAL_PYTHON") {
        return Ok(named.into());
    }
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../test-tools/venv-modal");
    if tools.join("complete").exists() {
        return Ok(tools.join("bin/python"));
    }
    Err("there is no interpreter with the client of Modal (tests/run makes one, or name it in TALARIA_TEST_MODAL_PYTHON)".to_owned())
}

/// Whether there can be one. Says so, and is a failure where it is required.
#[expect(clippy::print_stderr, reason = "a skip must be seen")]
pub(crate) fn can_be() -> bool {
    let Err(missing) = python() else { return true };
    let required = std::env::var("TALARIA_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|one| one == "modal");
    assert!(!is_required, "{missing}, and TALARIA_REQUIRE names modal");
    eprintln!("SKIPPED: sandboxes of Modal: {missing}");
    false
}

impl StandIn {
    /// Starts one whose sandboxes see this folder of the machine, under the same path.
    pub(crate) fn start(visible: &Path) -> Self {
        Self::start_with(visible, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(visible: &Path, more: &[&str]) -> Self {
        let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rigs/modal");
        let mut process = Command::new(python().unwrap())
            .arg(rig)
            .arg("--visible")
            .arg(visible)
            .args([
                "--token-id",
                TOKEN.0,
                "--token-secret",
                TOKEN.1,
                "--gateway-token",
                GATEWAY_TOKEN,
            ])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let places: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let place = |name: &str| places[name].as_str().unwrap().to_owned();
        Self {
            process,
            control: place("control"),
            gateway: place("gateway"),
            admin: place("admin"),
            proxy: place("proxy"),
        }
    }

    /// The variables of a broker that uses it.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        [
            ("MODAL_SERVER_URL", self.control.as_str()),
            ("MODAL_TOKEN_ID", TOKEN.0),
            ("MODAL_TOKEN_SECRET", TOKEN.1),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into()
    }

    /// The variables of a broker that uses its gateway.
    pub(crate) fn gateway_variables(&self) -> Vec<(OsString, OsString)> {
        [
            ("MODAL_GATEWAY_URL", self.gateway.as_str()),
            ("MODAL_GATEWAY_TOKEN", GATEWAY_TOKEN),
            ("TALARIA_TERMINAL_MODAL_MODE", "managed"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into()
    }

    /// Its proxy as a variable names it, with what stands before the host.
    pub(crate) fn proxy_variable(&self, login: &str) -> String {
        self.proxy.replacen("://", &format!("://{login}"), 1)
    }

    /// The sandboxes that live, as it tells of them.
    pub(crate) fn living(&self) -> Vec<Value> {
        let sandboxes = self.ask("GET", "/sandboxes", None);
        let all = sandboxes.as_array().unwrap().iter();
        all.filter(|sandbox| sandbox["alive"] == true).cloned().collect()
    }

    /// One request.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let address = self.admin.strip_prefix("http://").unwrap();
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        write!(connection, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {answer}");
        serde_json::from_str(body).unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It ends when its standard input does.
        drop(self.process.stdin.take());
        let began = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if began.elapsed() > END_LIMIT {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
