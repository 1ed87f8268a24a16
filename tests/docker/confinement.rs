//! What a container of ours may do, and images of every kind.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use talaria_broker::backends::ProcessEnd;
use talaria_broker::backends::docker::{Network, Volume, VolumeSource};

use crate::rig::{docker, hold, open, rig, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_of_ours_is_confined() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("base");
    let mut options = rig.options(&image);
    options.memory = Some(256 << 20);
    options.network = Network::Off;
    options.shm_size = Some(1 << 20);
    let target = open(options).await;
    let _first = hold(&*target).await;
    let script = "\
import os, socket
status = dict(line.split(':', 1) for line in open('/proc/1/status'))
print(status['CapBnd'].strip(), status['NoNewPrivs'].strip())
print(sorted(os.listdir('/sys/class/net')))
mounts = [line.split() for line in open('/proc/mounts')]
print([m[2:4] for m in mounts if m[1] == '/run/talaria'])
print(os.stat('/run/talaria').st_mode & 0o7777 == 0o1777, os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize)
print(os.path.exists('/var/run/docker.sock'))
";
    let printed = run(&*target, &["python3", "-c", script]).await.unwrap();
    let lines: Vec<&str> = printed.out.lines().collect();
    // CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID are the bits 0, 1, 3, 4, 5, 6, 7.
    assert_eq!(lines[0], "00000000000000fb 1", "{printed:?}");
    assert_eq!(lines[1], "['lo']");
    assert!(
        lines[2].contains("tmpfs") && lines[2].contains("size=262144k") && !lines[2].contains("noexec"),
        "{printed:?}"
    );
    assert_eq!(&lines[3..], ["True 1048576", "False"]);
    let name = rig.one(&image).await;
    let format = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}} {{.HostConfig.AutoRemove}} \
                  {{.HostConfig.LogConfig.Type}} {{.HostConfig.Privileged}} {{len .NetworkSettings.Ports}} \
                  {{index .Config.Labels \"io.talaria.session\"}}";
    let shown = docker(&["inspect", "-f", format, &name]);
    assert_eq!(shown, format!("268435456 268435456 1024 true none false 0 {name}"));
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_every_kind_start() {
    let Some(rig) = rig().await else { return };
    let script = "import os; print(os.getuid(), os.getcwd(), repr(os.environ.get('HOME')), os.environ.get('PLAIN'))";
    for (variant, shown) in [
        ("base", "0 / '/root' None"),
        ("user", "1000 /srv/app '/home/worker' None"),
        ("stranger", "12345 / '/' None"),
        ("entrypoint", "0 / '/root' None"),
        ("secrets", "0 / '/root' visible"),
        ("bare", "0 / '/root' None"),
    ] {
        let image = rig.image(variant);
        let target = rig.open(&image).await;
        let printed = run(&*target, &["python3", "-c", script]).await.unwrap();
        assert_eq!(
            (printed.out.trim(), printed.end),
            (shown, ProcessEnd::Code(0)),
            "{variant}"
        );
        target.close().await.unwrap();
        rig.nothing_is_left(&image).await;
    }
    let image = rig.image("homeless");
    let target = rig.open(&image).await;
    let printed = run(&*target, &["python3", "-c", "print(1)"]).await.unwrap();
    assert_eq!(printed.out, "1\n");
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_check_of_an_image_does_not_run() {
    let Some(rig) = rig().await else { return };
    let image = rig.image("entrypoint");
    let target = rig.open(&image).await;
    let _first = hold(&*target).await;
    let name = rig.one(&image).await;
    let health = docker(&["inspect", "-f", "{{with .State.Health}}{{.Status}}{{end}}", &name]);
    assert!(matches!(health.as_str(), "" | "none"), "{health}");
    target.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_a_mount_belong_to_the_user_who_was_named() {
    let Some(rig) = rig().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let owner = std::fs::metadata(folder.path()).unwrap();
    let image = rig.image("base");
    let mut options = rig.options(&image);
    options.host_user = Some((owner.uid(), owner.gid()));
    options.folder = Some("/workspace".to_owned());
    let volume = |source, target: &str, read_only| Volume {
        source,
        target: target.to_owned(),
        read_only,
        label: None,
    };
    options.volumes = vec![
        volume(VolumeSource::Path(folder.path().to_owned()), "/workspace", false),
        volume(VolumeSource::Path(PathBuf::from("/usr/share")), "/read", true),
    ];
    let target = open(options).await;
    let printed = run(
        &*target,
        &[
            "sh",
            "-c",
            "echo hi >made && pwd && ls /read >/dev/null && touch /read/x",
        ],
    )
    .await
    .unwrap();
    assert_eq!(printed.out, "/workspace\n", "{printed:?}");
    assert!(printed.err.contains("Read-only"), "{printed:?}");
    let made = std::fs::metadata(folder.path().join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()));
    target.close().await.unwrap();
}
