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

#[cfg(test)]
mod modules;

macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name))
    };
}

/// The groups of `modules`, as `build.rs` has packed them.
const SESSION: &[u8] = packed!("session.texts");
const DIRECTORY: &[u8] = packed!("directory.texts");
const ALONE: &[u8] = packed!("alone.texts");
/// The first two together, compressed.
const DIRECTORY_ZLIB: &[u8] = packed!("directory.zlib");

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
    /// Whether the modules are sent as they are: to an interpreter without `zlib`.
    pub is_plain: bool,
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
    SESSION.hash(&mut hasher);
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
    pack(&[SESSION], &entries)
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
    if start.is_plain {
        return pack(&[SESSION, DIRECTORY], &entries);
    }
    entries.push(entry("compressed", "1"));
    pack(&[DIRECTORY_ZLIB], &entries)
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
    pack(&[SESSION, DIRECTORY, ALONE], &entries)
}

fn entry(name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_ref()].concat()
}

fn pack(modules: &[&[u8]], entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bundle = Vec::new();
    for part in [BOOTSTRAP.as_bytes(), &entries.join(&0), &modules.concat()] {
        bundle.extend_from_slice(format!("{:08}", part.len()).as_bytes());
        bundle.extend_from_slice(part);
    }
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

    /// Parses what is sent, which comes as name, text, name, text, and what it was made from in the folder that is named.
    const COMPARE: &str = r##"
import ast, sys
def bare(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
            node.end_lineno = node.end_col_offset = node.value.end_lineno = node.value.end_col_offset = 0
            node.value.kind = None
    for node in ast.walk(tree):
        for name in ("col_offset", "end_col_offset", "end_lineno"):
            if hasattr(node, name): setattr(node, name, 0)
    return ast.dump(tree, include_attributes=True)
parts = sys.stdin.buffer.read().split(b"\0\0")[:-1]
for name, text in zip(parts[::2], parts[1::2]):
    written = open(sys.argv[1] + "/" + name.decode() + ".py", "rb").read()
    assert bare(text) == bare(written), name
    assert not [line for line in text.splitlines() if line.strip().startswith(b"# ")], name
print(len(parts) // 2)
"##;

    #[test]
    fn what_is_sent_means_what_is_written() -> std::io::Result<()> {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut input = Vec::new();
        let mut rest = [SESSION, DIRECTORY, ALONE].concat();
        while !rest.is_empty() {
            let mut parts = rest.splitn(3, |byte| *byte == 0);
            let (name, size) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let size: usize = std::str::from_utf8(size)
                .ok()
                .and_then(|size| size.parse().ok())
                .unwrap_or_default();
            let source = parts.next().unwrap_or_default();
            for part in [name, &source[..size]] {
                input.extend_from_slice(part);
                input.extend_from_slice(b"\0\0");
            }
            rest = source[size..].to_vec();
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/remote_agent");
        let mut python = Command::new("python3")
            .args(["-c", COMPARE, folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = python.stdin.take() {
            stdin.write_all(&input)?;
        }
        let said = python.wait_with_output()?;
        let number = modules::SESSION.len() + modules::DIRECTORY.len() + modules::ALONE.len();
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), number.to_string());
        Ok(())
    }

    #[test]
    fn a_module_is_carried_once_and_none_is_forgotten() {
        let mut carried: Vec<String> = [modules::SESSION, modules::DIRECTORY, modules::ALONE]
            .concat()
            .iter()
            .map(|name| format!("{name}.py"))
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
