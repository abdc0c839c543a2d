// Browser tests of the pages that setpoint writes and serves. They need Node.js 20, `npm ci` in this folder, and Chromium.
//
//   node check.mjs --program FILE [--screenshots DIR]      all of them, of studies that the program FILE runs (cargo build, and
//                                                          cargo build --example pages_benchmark)
//   node check.mjs --pages FILE... [--screenshots DIR]     files written by `setpoint report`
//   node check.mjs --live URL... [--screenshots DIR]       pages of studies, served by `setpoint serve`
//   node check.mjs --others URL-OR-FILE...                 lists and comparisons: policy, layout and accessibility only
//
// CHROMIUM names the browser, /usr/bin/chromium by default. Each failure names the page, the chart and both values. The exit
// code is 1 if there is one, and 2 if no check could run.

import { resolve } from "node:path";
import { checkOtherPage, checkPage, launch } from "./pages.mjs";
import { checkProgram } from "./program.mjs";

// Lists of values by option: `--pages a b --screenshots c` gives { pages: [a, b], screenshots: [c] }.
function options(words) {
  const found = { program: [], pages: [], live: [], others: [], screenshots: [] };
  let current = null;
  for (const word of words) {
    if (word.startsWith("--")) current = found[word.slice(2)];
    else current?.push(word);
    if (!current) throw new Error(`unknown option or value: ${word}; the first lines of check.mjs have the usage`);
  }
  return found;
}

async function main() {
  const { program, pages, live, others, screenshots } = options(process.argv.slice(2));
  const given = program.length + pages.length + live.length + others.length;
  if (given === 0) throw new Error("no page to check: pass --program, --pages, --live or --others");
  const browser = await launch();
  const failures = [];
  try {
    if (program.length > 0) {
        failures.push(...(await checkProgram(browser, resolve(program[0]), { screenshots: screenshots[0] })));
    }
    for (const place of [...pages, ...live]) failures.push(...(await checkPage(browser, place, { screenshots: screenshots[0] })));
    for (const place of others) failures.push(...(await checkOtherPage(browser, place, { screenshots: screenshots[0] })));
  } finally {
    await browser.close();
  }
  for (const failure of failures) console.error(failure);
  process.exitCode = failures.length > 0 ? 1 : 0;
}

await main().catch((error) => {
  console.error(error.message);
  process.exit(2);
});
