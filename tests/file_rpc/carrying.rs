//! What a link carries, over streams and in looks.

use talaria_broker::file_rpc::Transport;
use talaria_broker::link::Link as _;

use crate::rig::Rig;

async fn a_cell_prints_and_calls(transport: Transport) {
    let rig = Rig::new(transport).await.kernel().await;
    let (output, done) = rig
        .run("import hermes_tools\nfor n in range(5):\n    print(n, hermes_tools.call('echo', name=str(n)))\n")
        .await;
    assert_eq!(done.why, "done");
    assert_eq!(
        output,
        "0 {'name': '0'}\n1 {'name': '1'}\n2 {'name': '2'}\n3 {'name': '3'}\n4 {'name': '4'}\n"
    );
    let (output, _) = rig.run("x = 41").await;
    assert_eq!(output, "");
    let (output, _) = rig.run("print(x + 1)").await;
    assert_eq!(output, "42\n");
    assert_eq!(rig.link.relinks().count, 0);
    rig.close().await;
}

async fn large_bodies_pass_and_small_ones_between(transport: Transport, megabytes: u64) {
    let rig = Rig::new(transport).await.kernel().await;
    let source = format!(
        "
import threading
from hermes_tools import call
size = {megabytes} << 20
done = []
def large():
    answer = call('measure', text='x' * size)
    assert answer == {{'size': size, 'same': True}}, answer
    text = call('make', size=size)['text']
    assert text == 'y' * size, len(text)
    done.append(True)
thread = threading.Thread(target=large)
thread.start()
small = 0
while thread.is_alive():
    assert call('echo', name=str(small)) == {{'name': str(small)}}
    small += 1
assert done
print('x' * (4 << 20))
print(small > 2)
"
    );
    let (output, done) = rig.run(&source).await;
    assert_eq!(done.why, "done");
    assert!(
        output.ends_with("x\nTrue\n"),
        "{:?} {}",
        done.result,
        &output[output.len().saturating_sub(200)..]
    );
    assert_eq!(output.len(), (4 << 20) + 6);
    assert_eq!(rig.tools.count("measure "), 1);
    assert_eq!(rig.tools.count("make "), 1);
    rig.close().await;
}

async fn a_large_source_passes(transport: Transport) {
    let rig = Rig::new(transport).await.kernel().await;
    let source = format!("text = '{}'\nprint(len(text))\n", "z".repeat(4 << 20));
    let (output, _) = rig.run(&source).await;
    assert_eq!(output, format!("{}\n", 4 << 20));
    rig.close().await;
}

async fn a_tool_that_panics_is_an_error(transport: Transport) {
    let rig = Rig::new(transport).await.kernel().await;
    let (output, _) = rig
        .run("import hermes_tools\nprint('error' in hermes_tools.call('panic'))\nprint(hermes_tools.call('echo', name='a'))\n")
        .await;
    assert_eq!(output, "True\n{'name': 'a'}\n");
    rig.close().await;
}

macro_rules! both_ways {
    ($($name:ident $(($($more:expr),*))?;)*) => {
        mod stream {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Transport::Stream $($(, $more.0)*)?).await;
            })*
        }
        mod polled {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Transport::Polled $($(, $more.1)*)?).await;
            })*
        }
    };
}

both_ways! {
    a_cell_prints_and_calls;
    large_bodies_pass_and_small_ones_between((64, 16));
    a_large_source_passes;
    a_tool_that_panics_is_an_error;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_links_stand_side_by_side() {
    let (one, other) = tokio::join!(Rig::new(Transport::Auto), Rig::new(Transport::Auto));
    let (one, other) = tokio::join!(one.kernel(), other.kernel());
    let source = |name: &str| {
        format!(
            "import hermes_tools\nprint([hermes_tools.call('echo', name='{name}%d' % n)['name'] for n in range(20)][-1])\n"
        )
    };
    let (a, b) = (source("a"), source("b"));
    let (first, second) = tokio::join!(one.run(&a), other.run(&b));
    assert_eq!((first.0.as_str(), second.0.as_str()), ("a19\n", "b19\n"));
    one.close().await;
    let (output, _) = other.run("print('still here')").await;
    assert_eq!(output, "still here\n");
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_as_small_as_allowed_carries_everything() {
    let rig = Rig::with(Transport::Stream, |start| start.window = Some(1))
        .await
        .unwrap();
    let rig = rig.kernel().await;
    let (output, _) = rig.run("print('w' * (3 << 20))").await;
    assert_eq!(output.len(), (3 << 20) + 1);
    rig.close().await;
}
