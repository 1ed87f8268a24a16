//! Bytes and ends of processes.

use std::time::Duration;

use talaria_broker::backends::{BackendError, Command, Process, ProcessEnd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{LIMIT, command, finish, hold, rig, run};

/// Bytes that hold every value, and that no two equal parts of an output could be mistaken for.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// What comes back of what was sent, while both are under way.
async fn echo(process: Process, sent: Vec<u8>) -> Vec<u8> {
    let Process {
        mut stdin, mut stdout, ..
    } = process;
    let length = sent.len();
    let send = tokio::spawn(async move {
        stdin.write_all(&sent).await.unwrap();
        stdin
    });
    let mut got = vec![0; length];
    tokio::time::timeout(LIMIT * 4, stdout.read_exact(&mut got))
        .await
        .unwrap()
        .unwrap();
    drop(send.await.unwrap());
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_command_is_the_first_process_and_later_ones_run_beside_it() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let mut first = target.spawn(command(&["sh", "-c", "echo $$; exec cat"])).await.unwrap();
    first.end.detach();
    first.stdin.write_all(b"hello\n").await.unwrap();
    let mut got = vec![0; 8];
    tokio::time::timeout(LIMIT, first.stdout.read_exact(&mut got))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(got, b"1\nhello\n");
    let beside = run(&*target, &["sh", "-c", "cat /proc/1/comm; echo oops >&2; exit 7"])
        .await
        .unwrap();
    assert_eq!(
        (beside.out.as_str(), beside.err.as_str(), beside.end),
        ("cat\n", "oops\n", ProcessEnd::Code(7))
    );
    target.close().await.unwrap();
    rig.nothing_is_left(&image).await;
    let error = target.spawn(command(&["true"])).await.err().unwrap();
    assert!(matches!(error, BackendError::Gone { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_pass_whole_through_first_and_later_processes() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let first = hold(&*target).await;
    let later = target.spawn(command(&["cat"])).await.unwrap();
    let sent = noise(64 << 20);
    assert!(echo(later, sent.clone()).await == sent);
    let sent = noise(16 << 20);
    assert!(echo(first, sent.clone()).await == sent);
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_input_and_the_exit_code_arrive() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let script = "import sys; print(len(sys.stdin.buffer.read())); sys.exit(5)";
    let _first = hold(&*target).await;
    let later = target.spawn(command(&["python3", "-c", script])).await.unwrap();
    let printed = finish(later, &noise(100_000)).await;
    assert_eq!((printed.out.as_str(), printed.end), ("100000\n", ProcessEnd::Code(5)));
    target.close().await.unwrap();
    let alone = rig.open(&image).await;
    let first = alone.spawn(command(&["python3", "-c", script])).await.unwrap();
    let printed = finish(first, &noise(100_000)).await;
    assert_eq!((printed.out.as_str(), printed.end), ("100000\n", ProcessEnd::Code(5)));
    rig.nothing_is_left(&image).await;
    alone.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_and_folder_are_those_that_were_given() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("secrets");
    let mut options = rig.options(&image);
    options.environment = [("GIVEN".to_owned(), "to all\n'\"$x".to_owned())].into();
    options.folder = Some("/usr/lib".to_owned());
    let target = crate::rig::open(options).await;
    let show = [
        "python3",
        "-c",
        "import os; print(sorted(os.environ.items()), os.getcwd())",
    ];
    let asked = |folder: Option<&str>| Command {
        environment: [("OWN".into(), "for one".into())].into(),
        folder: folder.map(Into::into),
        input: Default::default(),
        ..command(&show)
    };
    let _first = hold(&*target).await;
    for (folder, shown) in [(None, "/usr/lib"), (Some("/tmp"), "/tmp")] {
        let printed = finish(target.spawn(asked(folder)).await.unwrap(), b"").await;
        for part in [
            r#"('GIVEN', 'to all\n\'"$x')"#,
            "('OWN', 'for one')",
            "('API_KEY', 'k3y",
            shown,
        ] {
            assert!(printed.out.contains(part), "{part}: {printed:?}");
        }
        assert!(!printed.out.contains("CARGO"), "{printed:?}");
    }
    let plain = run(&*target, &show).await.unwrap();
    assert!(!plain.out.contains("OWN"), "{plain:?}");
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_missing_is_said_to_be_and_the_next_is_tried() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    for missing in ["python3.99", "/opt/nothing", "/etc/passwd", "/usr"] {
        let error = target.spawn(command(&[missing, "-c", "pass"])).await.err().unwrap();
        assert!(
            matches!(&error, BackendError::NoProgram { program, .. } if program == missing),
            "{missing}: {error}"
        );
        assert_eq!(rig.ours(&image).await.len(), 0, "{missing}");
    }
    let _first = hold(&*target).await;
    for missing in ["python3.99", "/opt/nothing"] {
        match run(&*target, &[missing]).await {
            Err(error) => assert!(matches!(error, BackendError::NoProgram { .. }), "{error}"),
            Ok(printed) => assert!(
                matches!(printed.end, ProcessEnd::Code(126 | 127)),
                "{missing}: {printed:?}"
            ),
        }
    }
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_that_nobody_reads_locks_nobody_out() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let _first = hold(&*target).await;
    let name = rig.one(&image).await;
    let ends_in_time = |what: &'static str| {
        let (target, name) = (target.clone(), name.clone());
        async move {
            let printed = tokio::time::timeout(LIMIT, run(&*target, &["echo", what])).await;
            let printed = printed
                .unwrap_or_else(|_| panic!("a command of ours hangs {what}"))
                .unwrap();
            assert_eq!(printed.out, format!("{what}\n"));
            let users = tokio::process::Command::new("docker")
                .args(["exec", &name, "true"])
                .status();
            let users = tokio::time::timeout(LIMIT, users).await;
            let users = users
                .unwrap_or_else(|_| panic!("a command of the user's hangs {what}"))
                .unwrap();
            assert!(users.success(), "{what}");
        }
    };
    // As much as a relay may have under way, unread, and its process killed.
    let script = "import os, time; os.write(1, b'x' * 524288); time.sleep(600)";
    let unread = target.spawn(command(&["python3", "-c", script])).await.unwrap();
    ends_in_time("while a window waits").await;
    run(
        &*target,
        &[
            "sh",
            "-c",
            "for p in /proc/[0-9]*; do grep -q 524288 $p/cmdline && kill -9 ${p#/proc/}; done; true",
        ],
    )
    .await
    .unwrap();
    ends_in_time("after its process was killed").await;
    drop(unread);
    ends_in_time("after it was dropped").await;
    // More than anything of ours would leave unread.
    let endless = target.spawn(command(&["yes"])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    ends_in_time("beside an endless one").await;
    run(
        &*target,
        &[
            "sh",
            "-c",
            "for p in /proc/[0-9]*; do grep -qx yes $p/comm && kill -9 ${p#/proc/}; done; true",
        ],
    )
    .await
    .unwrap();
    ends_in_time("after an endless one was killed").await;
    drop(endless);
    ends_in_time("after an endless one was dropped").await;
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_ends() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let target = rig.open(&image).await;
    let mut held = hold(&*target).await;
    held.end.kill();
    let mut later = target.spawn(command(&["cat"])).await.unwrap();
    later.end.kill();
    let end = tokio::time::timeout(LIMIT, later.end.wait()).await.unwrap();
    assert_eq!(end, ProcessEnd::Code(0), "cat ends when its input does");
    target.close().await.unwrap();
    let target = rig.open(&image).await;
    let mut first = target.spawn(command(&["cat"])).await.unwrap();
    first.end.kill();
    let end = tokio::time::timeout(LIMIT, first.end.wait()).await.unwrap();
    // Podman knows of no code when it removes what it killed.
    let no_code = rig.is_podman() && end == ProcessEnd::Code(0);
    assert!(no_code || end == ProcessEnd::Code(137), "{end:?}");
    rig.nothing_is_left(&image).await;
}
