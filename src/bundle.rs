//! The Python that runs on the target, as it is carried there.
//!
//! One line for `python -c` introduces the interpreter and takes the bundle from standard input, so
//! that no command line shows it. The layout of the bundle is described in `remote_agent/bootstrap.py`.

use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// What the first line of a fit interpreter begins with.
pub const MARKER: &str = "talaria-agent ";

/// Put together at run time over there, so that an echo of the command is no answer; valid down to
/// Python 2.7, which only reports its version. No quote of the shell's and no newline: every login
/// shell passes it on.
const ONE_LINE: &str = concat!(
    r#"import sys,os,select;os.write(1,("talaria"+"-agent %d.%d.%d %s\n"%(sys.version_info[:3]+(sys.executable,))).encode("utf-8"));"#,
    r#"sys.version_info<(3,8) and sys.exit(0);select.select([0],[],[],99)[0] or sys.exit(0);"#,
    r#"r=lambda n,b=b"":b if len(b)>=n else r(n,b+(os.read(0,n-len(b)) or sys.exit("its standard input has ended: a command before it must pass that on (docker and kubectl exec do with -i)")));exec(r(int(r(8))))"#,
);

/// Runs the relay that the first link left in the session's directory, waiting a while for it: a script may have
/// removed the directory, and the supervisor makes it anew (5 s). Where something else has its place nobody can be rung
/// for, and the supervisor must see it by itself and end the session before the broker takes it for ended: 16 s, more than
/// its longest time between two looks (`CALM_LOOK`) and what it waits then (`AWAY`). Code of other users is not run. Says `G` or `E` in a frame
/// of its own where there is nothing to run.
const SECOND_LINE: &str = concat!(
    r#"import sys,os,time,marshal;os.write(1,("talaria"+"-agent %d.%d.%d %s\n"%(sys.version_info[:3]+(sys.executable,))).encode("utf-8"));"#,
    r#"d=sys.argv[1];f=d+"/code";h=lambda:os.path.lexists(f) and os.lstat(d).st_uid==os.lstat(f).st_uid==os.geteuid();"#,
    r#"[h() or (n<250 or os.path.lexists(d)) and time.sleep(.02) for n in range(800)];"#,
    r#"s=lambda k,t:(os.write(1,b"TF"+k+b"\1\0\0\0\0\0"+bytes([len(t)])+bytes(8)+t),sys.exit(1));"#,
    r#"h() or s(b"G",b"the directory of the session is gone");"#,
    r#"v,_,c=open(f,"rb").read().partition(b"\n");"#,
    r#"v==b"%x"%sys.hexversion or s(b"E",b"the session was started with another version of Python");"#,
    r#"[exec(c,sys.modules.setdefault(n,type(sys)(n)).__dict__) for n,c in marshal.loads(c)];sys.modules["relay"].again(c,sys.argv[1:])"#,
);

const BOOTSTRAP: &str = include_str!("../remote_agent/bootstrap.py");

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../remote_agent/", $name, ".py")))),*]
    };
}

/// A module's name and source.
type Module = (&'static str, &'static str);

/// In the order of their imports. `surroundings` to `kernel`, and what follows them, run in processes of their own.
const MODULES: &[Module] = modules![
    "wire",
    "processes",
    "trees",
    "control_groups",
    "scarce",
    "folders",
    "event_loop",
    "capture",
    "jobs",
    "kernels",
    "pipe",
    "verbs",
    "supervisor",
    "watch",
    "guard",
    "surroundings",
    "cell_sources",
    "kernel",
    "worker",
    "workspace",
    "rights",
    "text_file",
    "page",
    "aside",
    "whole_file",
    "changes",
    "search_globs",
    "search_walk",
    "search_lines",
    "search",
    "searchers",
];

/// What a session needs beside them when its messages travel through a directory.
const DIRECTORY_MODULES: &[Module] = modules![
    "notation",
    "frames",
    "directory",
    "places",
    "survey",
    "alarm",
    "lease",
    "fence",
    "orphans",
    "keeper",
    "event_log",
    "spool",
    "log_reader",
    "answers",
    "requests",
    "blobs",
    "outbox",
    "relay",
    "detached",
];

/// What it needs where no process can be started beside another: each is a command of its own.
const ALONE_MODULES: &[Module] = modules!["marked", "alone", "alone_cell"];

/// What the target side is told when its messages travel through a directory (`docs/protocol.md`).
#[derive(Clone, Debug)]
pub struct DirectoryStart {
    /// 32 hex digits, chosen at random.
    pub session: String,
    /// Folders in which the directory may be made, best first; the target knows more.
    pub bases: Vec<Vec<u8>>,
    /// Who starts it: hex digits, no blank.
    pub owner: String,
    /// The number of this link: rises with every link of the owner.
    pub link: u64,
    /// Bytes that may be under way to the broker.
    pub window: u32,
    /// How long the session lives without a sign of the broker.
    pub lease: Duration,
    /// The same before the first sign.
    pub first_lease: Duration,
    /// The working directory; empty: where the process starts.
    pub cwd: Vec<u8>,
    /// Whether to make a private working folder instead.
    pub work: bool,
    /// Which interpreters may run the kernel.
    pub interpreters: Interpreters,
}

/// What a command is told that stands alone (`remote_agent/alone.py`).
#[derive(Clone, Debug)]
pub(crate) struct AloneStart {
    /// 32 hex digits, chosen at random.
    pub(crate) session: String,
    /// 32 hex digits: what its messages begin with.
    pub(crate) mark: String,
    /// Folders in which the session's own may be made, best first.
    pub(crate) bases: Vec<Vec<u8>>,
    /// That folder, once it is known.
    pub(crate) folder: Vec<u8>,
    /// The working directory; empty: where the process starts.
    pub(crate) cwd: Vec<u8>,
    /// Whether to make a private working folder instead.
    pub(crate) work: bool,
    /// Which interpreters may run cells.
    pub(crate) interpreters: Interpreters,
}

/// Which interpreter runs the kernel of a session on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreters {
    /// The active virtual environment's, that of `.venv` in the working directory, else the one that runs the session.
    Project,
    /// The one that runs the session.
    Own,
}

impl Interpreters {
    fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Own => "own",
        }
    }
}

/// Arguments of the interpreter: isolated from the user's environment and site packages.
#[must_use]
pub fn arguments() -> Vec<OsString> {
    ["-I", "-S", "-c", ONE_LINE].map(OsString::from).to_vec()
}

/// Arguments of the same interpreter for a further link to the directory at `folder`.
#[must_use]
pub fn arguments_of_link(folder: &str, owner: &str, link: u64, window: u32) -> Vec<OsString> {
    let mut arguments = ["-I", "-S", "-c", SECOND_LINE, folder, owner]
        .map(OsString::from)
        .to_vec();
    arguments.push(link.to_string().into());
    arguments.push(window.to_string().into());
    arguments
}

/// The name under which compiled code of these very modules is cached.
#[must_use]
pub(crate) fn cache_name() -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    MODULES.hash(&mut hasher);
    format!("target-side-{:016x}", hasher.finish())
}

/// What the interpreter reads from its standard input where messages travel through its standard streams: the session's
/// folder is made as `name` in the first of `bases` where that works; compiled code is cached under `cache`.
#[must_use]
pub(crate) fn bundle(name: &str, bases: &[Vec<u8>], cache: Option<&[u8]>) -> Vec<u8> {
    let mut entries = vec![
        entry("mode", "pipe"),
        entry("session", name),
        entry("cache", cache.unwrap_or_default()),
    ];
    entries.extend(bases.iter().map(|base| entry("base", base)));
    pack(&[MODULES], &entries)
}

/// What the interpreter reads from its standard input where messages travel through a directory; frames follow.
#[must_use]
pub fn directory_bundle(start: &DirectoryStart) -> Vec<u8> {
    let mut entries = vec![
        entry("mode", "directory"),
        entry("session", &start.session),
        entry("owner", &start.owner),
        entry("link", start.link.to_string()),
        entry("window", start.window.to_string()),
        entry("lease", start.lease.as_secs_f64().to_string()),
        entry("first_lease", start.first_lease.as_secs_f64().to_string()),
        entry("cwd", &start.cwd),
        entry("work", if start.work { "1" } else { "" }),
        entry("interpreters", start.interpreters.name()),
    ];
    entries.extend(start.bases.iter().map(|base| entry("base", base)));
    pack(&[MODULES, DIRECTORY_MODULES], &entries)
}

/// What the interpreter reads from its standard input where it stands alone; one order follows.
#[must_use]
pub(crate) fn alone_bundle(start: &AloneStart) -> Vec<u8> {
    let mut entries = vec![
        entry("mode", "alone"),
        entry("session", &start.session),
        entry("mark", &start.mark),
        entry("folder", &start.folder),
        entry("cwd", &start.cwd),
        entry("work", if start.work { "1" } else { "" }),
        entry("interpreters", start.interpreters.name()),
    ];
    entries.extend(start.bases.iter().map(|base| entry("base", base)));
    pack(&[MODULES, DIRECTORY_MODULES, ALONE_MODULES], &entries)
}

fn entry(name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_ref()].concat()
}

fn pack(modules: &[&[Module]], entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bundle = format!("{:08}{BOOTSTRAP}", BOOTSTRAP.len()).into_bytes();
    let configuration = entries.join(&0);
    bundle.extend_from_slice(format!("{:08}", configuration.len()).as_bytes());
    bundle.extend_from_slice(&configuration);
    let mut texts = Vec::new();
    for (module, source) in modules.iter().copied().flatten() {
        texts.extend_from_slice(format!("{module}\0{}\0{source}", source.len()).as_bytes());
    }
    bundle.extend_from_slice(format!("{:08}", texts.len()).as_bytes());
    bundle.extend_from_slice(&texts);
    bundle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_login_shell_passes_the_lines_on() {
        for line in [ONE_LINE, SECOND_LINE] {
            assert!(!line.contains(['\'', '\n', '!', '`', '$']), "{line}");
            assert!(line.is_ascii());
        }
    }

    #[test]
    fn a_module_is_carried_once_and_none_is_forgotten() {
        let mut carried: Vec<String> = [MODULES, DIRECTORY_MODULES, ALONE_MODULES]
            .concat()
            .iter()
            .map(|(name, _)| format!("{name}.py"))
            .collect();
        // The one that loads them, and what the scripts' module is made of.
        let stub = [
            "hermes_runtime.py",
            "hermes_calls.py",
            "rpc_socket.py",
            "rpc_directory.py",
            "rpc_streams.py",
        ];
        carried.extend([&["bootstrap.py"][..], &stub].concat().into_iter().map(str::to_owned));
        carried.sort();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/remote_agent");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".py"))
            .collect();
        there.sort();
        assert_eq!(carried, there);
    }
}
