//! A supervisor whose worker searches, held against the broker's own search and the `rg` command.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use talaria_broker::kernel::Agent;
use talaria_broker::tools::{Found, LocalFiles, Pattern, SearchRequest, Told, Wanted};

use crate::supervisor;
pub(crate) use crate::supervisor::runtime;

/// Bounds a hang; says nothing of speed.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A session's supervisor with a folder to work in.
pub(crate) struct Rig {
    pub(crate) agent: Agent,
    folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn new() -> Self {
        Self {
            agent: supervisor::start().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Puts a file below the folder.
    pub(crate) fn file(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Leaves nothing in the folder.
    pub(crate) fn clear(&self) {
        for entry in std::fs::read_dir(self.root()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    pub(crate) async fn here(&self, request: &SearchRequest) -> Result<Found, String> {
        let files = LocalFiles::new(self.root(), None);
        let found = tokio::time::timeout(HANG, files.search(request.clone())).await.unwrap();
        found.map_err(|error| error.to_string())
    }

    pub(crate) async fn there(&self, request: &SearchRequest) -> Result<Found, String> {
        let folder = self.root().as_os_str().as_bytes().to_vec();
        let work = self
            .agent
            .run_verb("search", folder, Vec::new(), request.to_fields(), None);
        let fields = tokio::time::timeout(HANG, work).await.unwrap().unwrap()?;
        Found::from_fields(request, fields).map_err(|error| error.to_string())
    }

    /// What both find, which must be the same.
    pub(crate) async fn same(&self, request: &SearchRequest) -> Result<Found, String> {
        let (here, there) = (self.here(request).await, self.there(request).await);
        assert_eq!(there, here, "there, here; {request:?}");
        here
    }

    pub(crate) async fn close(self) {
        self.agent.close().await;
    }
}

/// A search for lines below the folder.
pub(crate) fn lines(pattern: &str) -> SearchRequest {
    lines_with(pattern, Told::Lines, 0)
}

pub(crate) fn lines_with(pattern: &str, told: Told, context: u64) -> SearchRequest {
    SearchRequest {
        path: ".".to_owned(),
        wanted: Wanted::Lines {
            pattern: Pattern::parse(pattern).unwrap(),
            told,
            context,
        },
        globs: Vec::new(),
        offset: 0,
        limit: 10_000,
    }
}

/// A search for names.
pub(crate) fn names(glob: &str) -> SearchRequest {
    SearchRequest {
        wanted: Wanted::Names(glob.to_owned()),
        ..lines("")
    }
}

/// What `rg` says where it is installed: paths, numbers of lines and lines.
pub(crate) fn ripgrep(root: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("rg")
        .args(["--no-config", "--no-ignore-global", "--no-messages", "--color=never"])
        .args(["--no-heading", "--with-filename", "--line-number", "--sort=path"])
        .args(arguments)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(
        text.lines()
            .map(|line| line.trim_start_matches("./").to_owned())
            .collect(),
    )
}
