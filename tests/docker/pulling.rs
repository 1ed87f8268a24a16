//! Images that a registry has to give.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use talaria_broker::backends::docker::DockerImage;
use talaria_broker::backends::{Backend, Phase, Progress, Silent};

use crate::rig::{LIMIT, docker, docker_succeeds, rig};

/// A registry of the distribution's package, with one image that holds a few random megabytes.
struct Registry {
    server: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Registry {
    fn start() -> Option<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {0}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            folder.path().display()
        );
        std::fs::write(folder.path().join("config.yml"), config).unwrap();
        let server = Command::new("docker-registry")
            .arg("serve")
            .arg(folder.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(server) = server else {
            eprintln!("SKIPPED: docker-registry is not installed, so nothing can be pulled");
            return None;
        };
        let registry = Self {
            server,
            port,
            _folder: folder,
        };
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < LIMIT, "the registry does not begin");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(registry)
    }

    fn image(&self, tag: &str) -> String {
        format!("localhost:{}/team/blob:{tag}", self.port)
    }

    /// Puts an image there that is nowhere else.
    fn fill(&self) {
        let mut data = vec![0; 8 << 20];
        getrandom::fill(&mut data).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("blob"), data).unwrap();
        let tar = Command::new("tar")
            .args(["-C", folder.path().to_str().unwrap(), "-c", "blob"])
            .output()
            .unwrap();
        let mut import = Command::new("docker")
            .args(["import", "-", &self.image("1")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        import.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
        assert!(import.wait().unwrap().success());
        docker(&["push", "--quiet", &self.image("1")]);
        docker(&["rmi", &self.image("1")]);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        docker_succeeds(&["rmi", &self.image("1")]);
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// What was said on the way.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Progress for Said {
    fn phase(&self, phase: Phase) {
        self.0.lock().unwrap().push(format!("{phase:?}"));
    }

    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_pulled_once_and_says_how_far_it_is() {
    let Some(rig) = rig().await else { return };
    let Some(registry) = Registry::start() else { return };
    registry.fill();
    let base = rig.image("base");
    let open = |tag: &str| {
        let mut options = rig.options(&base);
        options.image = registry.image(tag);
        DockerImage::new(options)
    };
    let said = Said::default();
    let target = open("1").open(&said).await.unwrap();
    target.close().await.unwrap();
    let lines = std::mem::take(&mut *said.0.lock().unwrap());
    let phases: Vec<&String> = lines.iter().filter(|line| !line.contains(' ')).collect();
    assert_eq!(phases, ["Connect", "Pull"], "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("pulling localhost:") && line.ends_with("of 8 MB")),
        "{lines:?}"
    );

    // It is there now.
    open("1").open(&said).await.unwrap().close().await.unwrap();
    assert_eq!(*said.0.lock().unwrap(), ["Connect"]);

    let error = open("2").open(&Silent).await.err().unwrap().to_string();
    assert!(
        error.contains("is not there") && error.contains("docker pull") && error.contains("not found"),
        "{error}"
    );
}
