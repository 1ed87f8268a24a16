// The official SDK for TypeScript (npm `@modelcontextprotocol/sdk`) and the inspector's command line
// (`@modelcontextprotocol/inspector --cli`), unchanged, against `talaria mcp`, over the standard streams and over HTTP.
//
//     node tests/mcp/typescript_sdk.mjs FOLDER TALARIA
//
// FOLDER holds `node_modules` with both.
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { once } from "node:events";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

const modules = join(resolve(process.argv[2]), "node_modules");
const talaria = resolve(process.argv[3]);
const sdk = (name) => import(pathToFileURL(join(modules, "@modelcontextprotocol/sdk/dist/esm", name)));
const { Client } = await sdk("client/index.js");
const { StdioClientTransport } = await sdk("client/stdio.js");
const { StreamableHTTPClientTransport } = await sdk("client/streamableHttp.js");

const folder = mkdtempSync(join(tmpdir(), "talaria-mcp-"));
const env = {
  PATH: process.env.PATH,
  HOME: process.env.HOME ?? "/",
  HERMES_HOME: join(folder, "hermes"),
  XDG_CONFIG_HOME: join(folder, "config"),
};
const token = "0123456789abcdef-token";

const http = spawn(talaria, ["mcp", "--http", "127.0.0.1:0"], {
  cwd: folder,
  env: { ...env, TALARIA_MCP_TOKEN: token },
  stdio: ["ignore", "inherit", "pipe"],
});
const [line] = await once(createInterface({ input: http.stderr }), "line");
const address = line.split(" ").at(-1);
const headers = { Authorization: `Bearer ${token}` };

const ways = {
  stdio: () => new StdioClientTransport({ command: talaria, args: ["mcp"], env, cwd: folder }),
  http: () => new StreamableHTTPClientTransport(new URL(address), { requestInit: { headers } }),
};

async function connected(way) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(ways[way]());
  return client;
}

async function within(seconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

const run = (client, given, options) =>
  client.callTool({ name: "execute_code", arguments: given }, undefined, options);

const cases = {
  async aScriptRunsAndItsStateIsKept(client) {
    assert.ok((await client.listTools()).tools.length >= 7);
    const first = (await run(client, { code: "x = 41" })).structuredContent;
    const second = await run(client, { code: "print(x + 1)", session: first.session });
    assert.equal(second.structuredContent.output, "42\n");
    const failed = await run(client, { code: "1 / 0" });
    assert.equal(failed.isError, true);
    await assert.rejects(run(client, { code: 5 }), (error) => error.code === -32602);
  },

  async progressIsTold(client) {
    const told = [];
    const code = "import time\nfor n in range(30):\n    print('step', n, flush=True)\n    time.sleep(.05)";
    await run(client, { code }, { onprogress: (progress) => told.push(progress.message) });
    assert.ok(told.some((message) => message.includes("step")), String(told));
  },

  async whoGivesUpLosesNothing(client, way) {
    const runs = join(folder, `runs-${way}`);
    const code = `import time\nopen(${JSON.stringify(runs)}, 'a').write('x')\ntime.sleep(2)\nprint('done')`;
    const asked = { code, idempotency_key: runs, detach: true };
    await assert.rejects(run(client, asked, { timeout: 1000 }));
    assert.equal((await run(client, asked)).structuredContent.output, "done\n");
    assert.equal(readFileSync(runs, "utf8"), "x");
  },

  async whoCancelsEndsTheScript(client) {
    const first = (await run(client, { code: "x = 1" })).structuredContent;
    const stop = new AbortController();
    const code = "import time\nprint('begun', flush=True)\ntime.sleep(3600)";
    const call = run(
      client,
      { code, session: first.session },
      { signal: stop.signal, onprogress: ({ message }) => message.includes("begun") && stop.abort() },
    );
    await assert.rejects(call);
    const next = (await run(client, { code: "print('x' in globals())", session: first.session })).structuredContent;
    assert.equal(next.output, "False\n");
    assert.match(next.notice, /interrupted/);
  },

  async filesAndLongOutputComeBack(client) {
    const made = await run(client, { code: "open('plot', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')\nprint('x' * 60000)" });
    const { session } = made.structuredContent;
    const got = await client.callTool({ name: "get_file", arguments: { path: "plot", session } });
    assert.deepEqual([got.content[0].type, got.content[0].mimeType], ["image", "image/png"]);
    const part = await client.readResource({ uri: `${made.content[1].uri}?offset=59990&limit=100` });
    assert.equal(part.contents[0].text, "x".repeat(10) + "\n");
  },
};

let failed = 0;
async function attempt(name, work) {
  try {
    await within(120, work());
    console.log(`ok       ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED   ${name}`, error);
  }
}

for (const way of Object.keys(ways)) {
  for (const [name, work] of Object.entries(cases)) {
    await attempt(`${way}: ${name}`, async () => {
      const client = await connected(way);
      try {
        await work(client, way);
      } finally {
        await client.close();
      }
    });
  }
}

const inspector = join(modules, "@modelcontextprotocol/inspector/clients/launcher/build/index.js");
const inspect = async (...given) => {
  const arguments_ = [inspector, "--cli", ...given];
  const options = { cwd: folder, env, timeout: 100_000 };
  const { stdout, stderr } = await promisify(execFile)(process.execPath, arguments_, options);
  return { ...JSON.parse(stdout), stderr };
};
const call = ["--method", "tools/call", "--tool-name", "execute_code", "--tool-arg", "code=print(6 * 7)"];
const remote = [address, "--transport", "http", "--header", `Authorization: Bearer ${token}`];
await attempt("inspector, stdio: lists the tools, whose schemas any client can take", async () => {
  const { tools, stderr } = await inspect(talaria, "mcp", "--method", "tools/list", "--strict");
  assert.ok(tools.some((tool) => tool.name === "execute_code"));
  assert.doesNotMatch(stderr, /Warning: tool|Error: tool/);
});
await attempt("inspector, stdio: runs a script", async () => {
  const result = await inspect(talaria, "mcp", ...call);
  assert.equal(result.structuredContent.output, "42\n");
});
await attempt("inspector, http: runs a script", async () => {
  const result = await inspect(...remote, ...call);
  assert.equal(result.structuredContent.output, "42\n");
});

http.kill("SIGTERM");
await once(http, "exit");
rmSync(folder, { recursive: true });
process.exit(failed ? 1 : 0);
