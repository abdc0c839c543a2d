// Check of updates: the page of a running study follows its trials, and keeps the reader's place.

import * as checks from "./page_checks.mjs";

// Waits until `read` returns a value that `holds`, and returns the last one.
async function until(read, holds, seconds) {
  const end = Date.now() + 1000 * seconds;
  for (;;) {
    const value = await read();
    if (holds(value) || Date.now() > end) return value;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const measured = (study) => study.trials.filter((trial) => trial.value !== null).length;

// Opens the page `url` and waits for another measured trial. `change` starts the change, or returns at once if the study
// runs by itself. `seconds` is the time that a trial may take.
export async function checkUpdates(browser, url, { change = async () => {}, seconds = 60 } = {}) {
  const failures = new checks.Failures(decodeURIComponent(new URL(url).pathname.split("/").at(-1)));
  const context = await browser.newContext({ viewport: checks.laptop });
  const page = await checks.open(context, url, failures);
  const status = () => page.locator("#connection").getAttribute("data-state");
  failures.check("live", "the state of the connection", await until(status, (state) => state === "connected", 10), "connected");

  const before = await checks.readDocument(page);
  await page.evaluate(() => {
    window.isSamePage = true;
    document.getElementById("d-facts").open = true;
    window.setpointDrawAll();
    scrollTo(0, 500);
  });
  if ((await page.locator("#tradeoff-y").count()) > 0) await page.selectOption("#tradeoff-y", before.metrics.at(-1));
  await page.locator(".contents a").first().focus();
  await page.evaluate(() => scrollTo(0, 500));
  await page.waitForTimeout(700);
  // The heading that is read: sections above it may grow.
  const heading = await page.evaluate(() => [...document.querySelectorAll("main h2")].find((one) => one.getBoundingClientRect().top > 0).id);
  const topOf = () => page.evaluate((id) => document.getElementById(id).getBoundingClientRect().top, heading);
  const place = await topOf();

  await change();
  const after = await until(() => checks.readDocument(page), (study) => measured(study) > measured(before), seconds);
  failures.holds("live", `more than ${measured(before)} measured trials`, measured(after) > measured(before), measured(after));
  await page.waitForTimeout(300);
  const kept = await page.evaluate(() => ({
    isSamePage: window.isSamePage === true,
    isOpen: document.getElementById("d-facts").open,
    focused: document.activeElement.getAttribute("href"),
    vertical: document.getElementById("tradeoff-y")?.value,
  }));
  failures.check("live", "the page was not loaded again", kept.isSamePage, true);
  failures.check("live", "the open details stay open", kept.isOpen, true);
  const moved = await topOf();
  failures.holds("live", `${heading} stays at ${place} px`, Math.abs(moved - place) <= 60, moved);
  failures.check("live", "the focus", kept.focused, "#verdict");
  if (measured(before) > 0) failures.check("live", "the selected metric", kept.vertical, before.metrics.at(-1));
  const text = await page.textContent("#d-facts summary");
  const shown = await checks.readDocument(page);
  failures.holds("live", `the text counts ${shown.study.counts.measured} measured trials`, text.includes(`${shown.study.counts.measured} trial`), text);
  await checks.checkCharts(page, shown, failures);
  await checks.checkSafety(page, failures);
  await context.close();
  console.log(`${failures.page}, updates: ${failures.checks} checks, ${failures.list.length} failed`);
  return failures.list;
}
