//! A host that is far away: what counts is how often something has to go there and back.

use std::time::Duration;

use crate::rig::Rig;

/// There and back, in milliseconds: so long that all else hardly counts, on a machine that does much else.
const THERE_AND_BACK: u32 = 100;

/// The shortest of some calls of each kind, in round trips.
const CALLS: &str = r"
import os, time
from hermes_tools import *
def trips(call):
    def once():
        began = time.monotonic()
        result = call()
        assert not result.get('error'), result
        return time.monotonic() - began
    return min(once() for _ in range(3)) / DISTANCE
def changed():
    open('p', 'w').write('a')
    return patch('p', 'a', 'b')
os.chdir(FOLDER)
terminal('cd ' + FOLDER)
open('f', 'w').write('text\n')
print(trips(lambda: read_file('f')), trips(lambda: write_file('w', 'text')), trips(lambda: search_files('text', path='f')), trips(changed))
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    def sixteen():
        list(pool.map(lambda _: read_file('f'), range(16)))
        return {}
    print(trips(sixteen))
";

#[test]
fn a_file_tool_takes_one_round_trip_and_a_patch_two() {
    let Some(rig) = Rig::new() else { return };
    let delayed = format!("{}/tests/rigs/delayed", env!("CARGO_MANIFEST_DIR"));
    let sshd = format!("{} -i -f {}", crate::rig::SSHD, rig.path("sshd.conf").display());
    let mut ssh = rig.ssh_options();
    ssh.extra
        .push(format!("ProxyCommand={delayed} {THERE_AND_BACK} {sshd}"));
    let session = rig.open(rig.options_of(ssh));
    let distance = Duration::from_millis(THERE_AND_BACK.into()).as_secs_f64();
    let folder = rig.path("home");
    let code = format!("DISTANCE, FOLDER = {distance}, '{}'\n{CALLS}", folder.display());
    let said = session.ok(&code);
    let trips: Vec<f64> = said.split_whitespace().map(|trips| trips.parse().unwrap()).collect();
    let expected = [1.0, 1.0, 1.0, 2.0, 1.0];
    for (trips, expected) in trips.iter().zip(expected) {
        assert!((expected..expected + 0.8).contains(trips), "{said}");
    }
    rig.close();
}
