//! A master connection of the user's own.

use crate::rig::Rig;
use crate::sessions::wait;

#[test]
fn a_master_of_the_users_is_used_and_stays() {
    let Some(rig) = Rig::new() else { return };
    let socket = rig.path("home/m");
    let mut master = rig
        .ssh(&["-M", "-N", "-S", socket.to_str().unwrap()], &[])
        .spawn()
        .unwrap();
    wait("the master", || socket.exists());
    let mut ssh = rig.ssh_options();
    ssh.control = Some(socket.clone());
    let session = rig.open(rig.options_of(ssh));
    assert_eq!(session.ok("print(6 * 7)"), "42\n");
    assert_eq!(rig.servers().len(), 1, "{:?}", rig.servers());
    crate::sessions::close(&rig.runtime, &rig.broker);
    assert!(master.try_wait().unwrap().is_none());
    let own = rig
        .ssh(&["-S", socket.to_str().unwrap()], &["echo", "still here"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&own.stdout), "still here\n", "{own:?}");
    master.kill().unwrap();
    master.wait().unwrap();
    std::fs::remove_file(&socket).unwrap();
    rig.nothing_is_left();
}
