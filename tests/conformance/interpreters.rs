//! Which Python runs the cells, and what may stand in its way.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use talaria_broker::outcome::Status;

use crate::observe::with_mark;
use crate::rig::{Kind, Rig, python};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    environments_go_before_path,
    an_interpreter_that_hangs_is_not_left_behind,
    only_old_ones_is_an_error_that_names_them,
    a_configured_python_is_the_only_one,
    strict_mode_takes_the_configured_one_and_a_folder_of_its_own,
    packages_of_a_virtual_environment_and_of_the_user,
    a_sitecustomize_that_misbehaves,
    a_project_that_shadows_every_module,
];

/// The search of the broker.
pub(crate) const CASES_HERE: &[Case] = cases![
    path_is_searched_by_name_and_what_is_broken_is_skipped,
    a_shim_is_told_which_interpreter_is_meant,
];

const WHO: &str = "import sys; print(sys.prefix)";

/// A virtual environment of the interpreter under test, without pip.
fn venv(rig: &Rig, folder: &Path) -> PathBuf {
    let session = rig.session();
    session.ok(&format!("import venv\nvenv.create({folder:?}, symlinks=True)"));
    session.close();
    folder.canonicalize().unwrap()
}

fn site(rig: &Rig, venv: &Path) -> PathBuf {
    venv.join(format!("lib/python3.{}/site-packages", rig.python_minor()))
}

fn program(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn environments_go_before_path(rig: &Rig) {
    let (one, two) = (
        venv(rig, &rig.scratch().join("one")),
        venv(rig, &rig.scratch().join("two")),
    );
    let third = venv(rig, &rig.work().join(".venv"));
    let gone = rig.scratch().join("gone");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (virtual_env, conda, expected) in [
        (Some(&one), Some(&two), &one),
        (None, Some(&two), &two),
        (None, None, &third),
        (Some(&gone), None, &third),
        (Some(&gone), Some(&two), &two),
    ] {
        let mut more = Vec::new();
        more.extend(virtual_env.map(|path| ("VIRTUAL_ENV", text(path))));
        more.extend(conda.map(|path| ("CONDA_PREFIX", text(path))));
        let session = rig.session_with(|options| {
            rig.among(options, more.iter().map(|(name, value)| (*name, value.as_str())));
            options.python = None;
        });
        assert_eq!(session.ok(WHO).trim(), text(expected), "{more:?}");
    }
}

fn path_is_searched_by_name_and_what_is_broken_is_skipped(rig: &Rig) {
    let bin = rig.scratch().join("bin");
    program(&bin.join("a/python3"), "#!/bin/sh\nexit 3\n");
    program(&bin.join("b/python3"), "#!/nonexistent/interpreter\n");
    program(&bin.join("c/python3"), "#!/bin/sh\necho 'Python 3.12.0'\n");
    program(
        &bin.join("d/python"),
        &format!("#!/bin/sh\necho banner\nexec '{}' \"$@\"\n", python().display()),
    );
    std::fs::create_dir_all(bin.join("e/python3")).unwrap();
    let path: Vec<String> = "abcde"
        .chars()
        .map(|name| format!("{}/{name}", bin.display()))
        .collect();
    let output = rig
        .cli(["-v", "run", "-c", "import sys; print(sys.executable)"])
        .without("TALARIA_CODE_EXECUTION_PYTHON")
        .env("PATH", path.join(":"))
        .run();
    assert_eq!(output.stdout.trim(), python().to_str().unwrap(), "{output:?}");
    for (name, found) in [
        ("a", "exited with 3"),
        ("b", "cannot be started"),
        ("c", "exited with 0"),
    ] {
        let skipped = output.stderr.lines().any(|line| {
            line.contains("skipped")
                && line.contains(&format!("{}/{name}/python3", bin.display()))
                && line.contains(found)
        });
        assert!(skipped, "{name}: {output:?}");
    }
}

/// It may be anything: what has not said that it is Python is killed when nobody waits for it any more.
fn an_interpreter_that_hangs_is_not_left_behind(rig: &Rig) {
    let bin = rig.scratch().join("hanging");
    program(&bin.join("python3"), "#!/bin/sh\nexec /bin/sleep 300\n");
    let session = rig.session_with(|options| {
        options.python = None;
        rig.among(options, [("PATH", bin.to_str().unwrap())]);
    });
    let cancel = talaria_broker::session::Cancel::new();
    let mut cell = talaria_broker::session::Cell::new("print(1)");
    cell.cancel = cancel.clone();
    let later = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        cancel.cancel("enough");
    });
    let outcome = session.run(cell);
    later.join().unwrap();
    assert_eq!(
        outcome.status,
        talaria_broker::outcome::Status::Interrupted,
        "{outcome:#?}"
    );
}

/// A program on `PATH` that stands for an interpreter, as pyenv's shims do.
fn a_shim_is_told_which_interpreter_is_meant(rig: &Rig) {
    let bin = rig.scratch().join("shims");
    program(
        &bin.join("python3"),
        &format!(
            "#!/bin/sh\n[ \"$PYENV_VERSION\" = meant ] || exit 9\nexec '{}' \"$@\"\n",
            python().display()
        ),
    );
    let code = "import os, sys; print(sys.executable, 'PYENV_VERSION' in os.environ)";
    let output = rig
        .cli(["run", "-c", code])
        .without("TALARIA_CODE_EXECUTION_PYTHON")
        .env("PATH", bin.display().to_string())
        .env("PYENV_VERSION", "meant")
        .run();
    assert_eq!(
        output.stdout.trim(),
        format!("{} False", python().display()),
        "{output:?}"
    );
}

/// What pyenv has installed, for tests of versions that a machine seldom has.
fn old_pythons() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let entries = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"));
    let entries = entries.into_iter().flatten().flatten();
    let old = |name: &str| name.starts_with("2.7") || name.starts_with("3.6") || name.starts_with("3.7");
    entries
        .filter(|entry| old(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path().join("bin/python"))
        .filter(|path| path.exists())
        .collect()
}

fn only_old_ones_is_an_error_that_names_them(rig: &Rig) {
    if rig.target.kind == Kind::Ssh {
        // There they are looked for beyond the PATH too: this machine's own would be found (`tests/ssh/errors.rs`).
        return;
    }
    let mut told = vec![(
        "a",
        "#!/bin/sh\nprintf 'talaria-agent 3.6.9 /old\\n'\n".to_owned(),
        "3.6.9".to_owned(),
    )];
    // Those of this machine are not there in a container.
    let olds = if rig.target.kind == Kind::Docker {
        Vec::new()
    } else {
        old_pythons()
    };
    for old in olds {
        let version = old
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let version = if version.starts_with("2.") {
            "is Python 2".to_owned()
        } else {
            version
        };
        told.push(("b", format!("#!/bin/sh\nexec '{}' \"$@\"\n", old.display()), version));
    }
    for (name, text, version) in told {
        let bin = rig.scratch().join(name);
        program(&bin.join("python3"), &text);
        let session = rig.session_with(|options| {
            rig.among(options, [("PATH", bin.to_str().unwrap())]);
            options.python = None;
        });
        let outcome = session.cell("print(1)");
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Error, None),
            "{outcome:#?}"
        );
        let error = outcome.error.unwrap();
        assert!(
            error.contains(&version) && error.contains("3.8 or newer"),
            "{version}: {error}"
        );
    }
    let outcome = rig
        .session_with(|options| {
            rig.among(options, [("PATH", "/nonexistent")]);
            options.python = None;
        })
        .cell("print(1)");
    let error = outcome.error.unwrap();
    assert!(
        error.contains("no Python was found") || error.contains("no fit Python"),
        "{error}"
    );
}

fn a_configured_python_is_the_only_one(rig: &Rig) {
    let one = venv(rig, &rig.scratch().join("one"));
    let output = rig
        .cli(["run", "--python", one.join("bin/python").to_str().unwrap(), "-c", WHO])
        .run();
    assert_eq!(output.stdout.trim(), one.to_str().unwrap(), "{output:?}");
    let output = rig
        .cli(["run", "--json", "--python", "/nonexistent/python", "-c", WHO])
        .run();
    assert_eq!(output.code(), 125, "{output:?}");
    assert!(
        output.outcomes()[0]["error"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/python"),
        "{output:?}"
    );
}

fn strict_mode_takes_the_configured_one_and_a_folder_of_its_own(rig: &Rig) {
    let one = venv(rig, &rig.scratch().join("one"));
    venv(rig, &rig.work().join(".venv"));
    rig.file("mine.py", "");
    let code = "import os, sys\nprint(sys.prefix)\nprint(os.getcwd())\nprint(os.listdir('.'))\nimport hermes_tools";
    let output = rig
        .cli([
            "run",
            "--mode",
            "strict",
            "--python",
            one.join("bin/python").to_str().unwrap(),
            "-c",
            code,
        ])
        .run();
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(output.code(), 0, "{output:?}");
    assert_eq!((lines[0], lines[2]), (one.to_str().unwrap(), "[]"), "{output:?}");
    assert!(
        !Path::new(lines[1]).exists() && !lines[1].starts_with(rig.work().to_str().unwrap()),
        "{output:?}"
    );
}

fn packages_of_a_virtual_environment_and_of_the_user(rig: &Rig) {
    let one = venv(rig, &rig.scratch().join("one"));
    std::fs::write(site(rig, &one).join("in_the_venv.py"), "HERE = 'venv'").unwrap();
    let session = rig.session_with(|options| options.python = Some(one.join("bin/python")));
    assert_eq!(session.ok("import in_the_venv; print(in_the_venv.HERE)"), "venv\n");
    let user = rig
        .home()
        .join(format!(".local/lib/python3.{}/site-packages", rig.python_minor()));
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("of_the_user.py"), "HERE = 'user'").unwrap();
    assert_eq!(
        rig.session().ok("import of_the_user; print(of_the_user.HERE)"),
        "user\n"
    );
}

fn a_sitecustomize_that_misbehaves(rig: &Rig) {
    let one = venv(rig, &rig.scratch().join("one"));
    for (text, runs) in [
        ("print('noise' * 100_000)", true),
        ("import sys\nsys.stderr.write('noise')\nraise RuntimeError('no')", true),
        ("import sys\nsys.stdout = None\nsys.path.clear()", false),
        ("raise SystemExit(3)", false),
        ("import os\nos._exit(5)", false),
        (
            "import sys\nprint = None\nsys.modules['json'] = None\nsys.modules['traceback'] = None",
            true,
        ),
    ] {
        std::fs::write(site(rig, &one).join("sitecustomize.py"), text).unwrap();
        let session = rig.session_with(|options| options.python = Some(one.join("bin/python")));
        let outcome = session.cell("from hermes_tools import terminal\nprint(terminal('echo on')['output'])");
        if runs {
            assert_eq!(
                (outcome.status, outcome.output.as_str()),
                (Status::Success, "on\n\n"),
                "{text}: {outcome:#?}"
            );
            assert!(outcome.notice.is_none(), "{text}: {outcome:#?}");
        } else if outcome.status != Status::Success {
            assert!(
                outcome.status == Status::Error && outcome.error.is_some(),
                "{text}: {outcome:#?}"
            );
        }
        session.close();
        assert!(with_mark(rig.scratch().to_str().unwrap()).is_empty());
    }
}

/// Every module that the standard library has stands in the project too, and raises.
fn a_project_that_shadows_every_module(rig: &Rig) {
    let names = "import os, sys\nimport sysconfig\nfolder = sysconfig.get_path('stdlib')\nnames = set(sys.builtin_module_names)
for place in (folder, folder + '/lib-dynload'):
    names |= {name.split('.')[0] for name in os.listdir(place) if name.endswith(('.py', '.so')) or os.path.isfile(place + '/' + name + '/__init__.py')}
print('\\n'.join(sorted(names)))";
    let asked = rig.session();
    let names = asked.ok(names);
    asked.close();
    let mut count = 0;
    for name in names
        .lines()
        .filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
    {
        let mut text = String::new();
        writeln!(text, "raise RuntimeError('the project has its own {name}')").unwrap();
        rig.file(&format!("{name}.py"), text);
        count += 1;
    }
    assert!(count > 150, "{count}");
    let session = rig.session();
    let outcome = session.cell("from hermes_tools import terminal, read_file\nprint(terminal('echo on')['output'])");
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "on\n\n"),
        "{outcome:#?}"
    );
    assert!(outcome.notice.is_none(), "{outcome:#?}");
    let outcome = session.file("# coding: latin-1\ndef f(): 1 / 0\nf()");
    assert!(outcome.output.contains("def f(): 1 / 0"), "{outcome:#?}");
    assert_eq!(outcome.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    assert_eq!(session.ok("async def f(): return 5\nprint(await f())"), "5\n");
    // It is the project's module that a cell imports.
    let outcome = session.cell("import json");
    assert!(outcome.error.unwrap().contains("its own json"));
    assert_eq!(session.ok("print('on')"), "on\n");
    let alone = rig.session_with(|options| options.keep_kernel = false);
    assert_eq!(
        alone.ok("from hermes_tools import terminal\nprint(terminal('echo on')['output'])"),
        "on\n\n"
    );
}
