// Runs setpoint and checks what it writes and serves: a study that a page follows, a study with load curves, and a made one of
// a thousand trials with hostile texts.

import { execFile, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { checkOtherPage, checkPage } from "./pages.mjs";
import { checkUpdates } from "./live_checks.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const run = promisify(execFile);
const TRIALS = 1000;

// Runs a study of the simulated engine. 4: no configuration kept the limits, which depends on the speed of this machine.
function tune(program, database, study, trials) {
  const words = ["--quiet", "--db", database, "tune", join(root, "examples", study), "--trials", String(trials)];
  return run(program, words).catch((error) => {
    if (error.code !== 4) throw error;
  });
}

// Starts `setpoint serve`, and returns its process and its address.
async function serve(program, database) {
  const server = spawn(program, ["--db", database, "serve", "--port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
  const address = await new Promise((found, failed) => {
    server.stdout.once("data", (line) => found(String(line).trim().replace(/\/$/, "")));
    server.once("exit", (code) => failed(new Error(`setpoint serve ended with ${code}`)));
  });
  return { server, address };
}

// Waits until a study has a measured trial.
async function firstTrial(url, seconds) {
  const end = Date.now() + 1000 * seconds;
  for (;;) {
    const answer = await fetch(`${url}/document`);
    if (answer.ok && (await answer.json()).trials.some((trial) => trial.value !== null)) return;
    if (Date.now() > end) throw new Error(`${url} has no measured trial after ${seconds} s`);
    await new Promise((later) => setTimeout(later, 200));
  }
}

// Returns the failures of all pages of the program.
export async function checkProgram(browser, program, options) {
  const folder = mkdtempSync(join(tmpdir(), "setpoint-pages-"));
  const database = join(folder, "studies.db");
  const failures = [];
  await run(join(dirname(program), "examples", "pages_benchmark"), ["write", database, String(TRIALS)]);
  const { server, address } = await serve(program, database);
  try {
    const running = tune(program, database, "quickstart.toml", 7);
    const quickstart = `${address}/studies/quickstart`;
    await firstTrial(quickstart, 120);
    failures.push(...(await checkUpdates(browser, quickstart, { seconds: 120 })));
    await running;
    await tune(program, database, "load-under-slo.toml", 1);
    const { stdout } = await run(program, ["--db", database, "studies", "--format", "json"]);
    const names = JSON.parse(stdout).map((study) => study.study);
    failures.push(...(await checkPage(browser, quickstart, options)));
    failures.push(...(await checkOtherPage(browser, `${address}/`, options)));
    const pair = `a=${encodeURIComponent(names[0])}&b=${encodeURIComponent(names[1])}`;
    failures.push(...(await checkOtherPage(browser, `${address}/compare?${pair}`, options)));
    for (const [index, name] of names.entries()) {
      const file = join(folder, `report-${index}.html`);
      await run(program, ["--quiet", "--db", database, "report", "--study", name, "-o", file]);
      failures.push(...(await checkPage(browser, file, options)));
    }
  } finally {
    server.kill();
    rmSync(folder, { recursive: true });
  }
  return failures;
}
