//! The network between broker and host loses what is sent: `ssh` is in a network of its own, with a firewall of its own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use talaria_broker::session::Cell;

use crate::rig::{Rig, is_root};
use crate::sessions::{BUSY, nothing_was_lost, noting};

/// A network with a cable to this machine. It ends with the process that holds it, and the cable with it.
struct Network {
    holder: Child,
    /// Address of this machine at its end of the cable.
    here: String,
}

impl Network {
    /// `None` where there can be none.
    fn new() -> Option<Self> {
        if !is_root() || !works("ip", &["-V"]) || !works("iptables", &["-V"]) {
            eprintln!("SKIPPED: only root can make networks, with ip and iptables (apt-get install iproute2 iptables)");
            return None;
        }
        let mut random = [0; 3];
        getrandom::fill(&mut random).unwrap();
        let [a, b, c] = random;
        let cable = format!("tssh{a:02x}{b:02x}{c:02x}");
        // In the middle of nowhere, four addresses for each.
        let address = |last: u8| format!("10.{}.{b}.{}", 200 + a % 50, (c & !3) + last);
        let holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let network = Self {
            holder,
            here: address(1),
        };
        network.has_begun();
        let pid = network.holder.id().to_string();
        let cables = [
            "link", "add", &cable, "type", "veth", "peer", "name", "home", "netns", &pid,
        ];
        if !works("ip", &cables) || !network.works("iptables", &["-S"]) {
            eprintln!("SKIPPED: this machine makes no networks, or has no firewall for them");
            return None;
        }
        assert!(works(
            "ip",
            &["addr", "add", &format!("{}/30", address(1)), "dev", &cable]
        ));
        assert!(works("ip", &["link", "set", &cable, "up"]));
        assert!(network.works("ip", &["addr", "add", &format!("{}/30", address(2)), "dev", "home"]));
        assert!(network.works("ip", &["link", "set", "home", "up"]));
        Some(network)
    }

    /// Waits until the holder is in a network of its own.
    fn has_begun(&self) {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        crate::sessions::wait("a network", || of(&self.holder.id().to_string()) != of("self"));
    }

    /// The beginning of a command line in this network.
    fn inside(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }

    fn works(&self, program: &str, arguments: &[&str]) -> bool {
        let [enter, which] = self.inside();
        works(&enter, &[&[which.as_str(), program], arguments].concat())
    }

    /// Nothing comes and goes any more, and nobody is told; and it does again.
    fn drops(&self, begins: bool) {
        for chain in ["INPUT", "OUTPUT"] {
            let how = if begins { "-A" } else { "-D" };
            assert!(self.works("iptables", &["-w", how, chain, "-j", "DROP"]));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn works(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).output();
    done.is_ok_and(|done| done.status.success())
}

/// Runs a cell through times in which all is lost.
fn goes_on_after(seconds: &[u64]) {
    let Some(network) = Network::new() else { return };
    let Some(rig) = Rig::with(&[&format!("ListenAddress {}", network.here)]) else {
        return;
    };
    let mut ssh = rig.ssh_options();
    let [enter, which] = network.inside();
    rig.add_client(&mut ssh, &format!("exec {enter} {which} /usr/bin/ssh \"$@\""));
    ssh.extra.retain(|option| !option.starts_with("HostName="));
    ssh.extra.push(format!("HostName={}", network.here));
    let mut options = rig.options_of(ssh);
    let notes = noting(&mut options);
    let session = rig.open(options);
    session.ok("kept = 'kept'");
    let running = session.start(Cell::new(BUSY));
    for seconds in seconds {
        std::thread::sleep(Duration::from_millis(500));
        network.drops(true);
        std::thread::sleep(Duration::from_secs(*seconds));
        network.drops(false);
    }
    nothing_was_lost(running.wait(), &notes);
    assert_eq!(session.ok("print(kept)"), "kept\n");
    rig.close();
}

#[test]
fn the_network_loses_all_for_a_moment() {
    goes_on_after(&[2]);
}

#[test]
#[ignore = "takes more than a minute"]
fn the_network_loses_all_for_a_minute() {
    goes_on_after(&[60]);
}
