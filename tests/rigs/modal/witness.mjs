// Modal's own client for JavaScript (npm `modal`), unchanged, against the stand-in.
//
//     node tests/rigs/modal/witness.mjs FOLDER PYTHON
//
// FOLDER holds `node_modules/modal`, PYTHON has the client for Python, whose bindings the stand-in serves.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const [folder, python] = process.argv.slice(2);
const here = fileURLToPath(new URL(".", import.meta.url));
const standIn = spawn(python, [here], { stdio: ["pipe", "pipe", "inherit"] });
const [line] = await once(createInterface({ input: standIn.stdout }), "line");
const urls = JSON.parse(line);

process.env.MODAL_SERVER_URL = urls.control;
process.env.MODAL_CONFIG_PATH = "/nonexistent/modal.toml";
const { ModalClient } = createRequire(`${folder}/package.json`)("modal");
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };
const modal = new ModalClient({ tokenId: "ak-witness", tokenSecret: "as-witness", logger: quiet });
const app = await modal.apps.fromName("witness", { createIfMissing: true });
const sandbox = (params) => modal.sandboxes.create(app, modal.images.fromRegistry("debian:12"), params);

async function faults(...given) {
  const answer = await fetch(`${urls.admin}/faults`, { method: "POST", body: JSON.stringify(given) });
  assert.equal(answer.status, 200, await answer.text());
}

const cases = {
  async commandsHaveOutputAndExitCodes() {
    const box = await sandbox({ env: { GIVEN: "by the sandbox" } });
    const run = await box.exec(["sh", "-c", 'echo "$GIVEN"; echo trouble >&2; exit 3']);
    assert.equal(await run.stdout.readText(), "by the sandbox\n");
    assert.equal(await run.stderr.readText(), "trouble\n");
    assert.equal(await run.wait(), 3);
    await box.terminate();
  },

  async bytesPassBothWaysWhole() {
    const box = await sandbox();
    const data = randomBytes(2 << 20);
    const run = await box.exec(["cat"], { mode: "binary" });
    const output = run.stdout.readBytes();
    const writer = run.stdin.getWriter();
    for (let start = 0; start < data.length; start += 1 << 19) await writer.write(data.subarray(start, start + (1 << 19)));
    await writer.close();
    assert.ok(data.equals(await output));
    assert.equal(await run.wait(), 0);
    await box.terminate();
  },

  async aConversationGoesBackAndForth() {
    const box = await sandbox();
    const run = await box.exec(["sh", "-c", 'while read line; do echo "got $line"; done']);
    const [reader, writer] = [run.stdout.getReader(), run.stdin.getWriter()];
    for (let number = 0; number < 10; number++) {
      await writer.write(`line ${number}\n`);
      assert.equal((await reader.read()).value, `got line ${number}\n`);
    }
    await writer.close();
    assert.equal(await run.wait(), 0);
    await box.terminate();
  },

  async outputThatIsCutIsResumed() {
    const box = await sandbox();
    await faults({ fault: "cut", stream: "stdout", after: 70_001, how: "UNAVAILABLE" });
    const run = await box.exec(["sh", "-c", "head -c 500000 /dev/zero | tr '\\0' x"]);
    assert.equal(await run.stdout.readText(), "x".repeat(500_000));
    await faults();
    await box.terminate();
  },

  async aTerminatedSandboxSaysSo() {
    const box = await sandbox();
    await box.terminate();
    assert.equal(await box.wait(), 137);
    assert.equal(await box.poll(), 137);
  },

  async theOlderGenerationDoesTheSame() {
    const box = await sandbox({ gpu: "T4" });
    const run = await box.exec(["echo", "older"]);
    assert.equal(await run.stdout.readText(), "older\n");
    assert.equal(await run.wait(), 0);
    await box.terminate();
    assert.match(box.sandboxId, /^sb-[0-9A-Za-z]{22}$/);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  const start = performance.now();
  try {
    await run();
    console.log(`ok      ${((performance.now() - start) / 1000).toFixed(1).padStart(5)} s  ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name}`, error);
    await faults();
  }
}
modal.close();
const ended = once(standIn, "exit");
standIn.stdin.end();
await ended;
process.exitCode = failed ? 1 : 0;
