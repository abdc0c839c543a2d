// The checks of one page: of a study, or of a list or comparison.

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import * as checks from "./page_checks.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const schemes = ["light", "dark"];

export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });

const address = (place) => (/^https?:/.test(place) ? place : pathToFileURL(resolve(place)).href);
const nameOf = (url) => basename(decodeURIComponent(new URL(url).pathname)).replace(/\.html$/, "") || "index";

// The violations that axe finds. The page's own policy would refuse axe, hence the context without a policy.
async function checkAccessibility(browser, url, colorScheme, failures, isLarge) {
  const context = await browser.newContext({ viewport: checks.laptop, colorScheme, bypassCSP: true });
  const page = await context.newPage();
  await page.goto(url);
  await page.addScriptTag({ content: axe });
  for (const isOpen of isLarge ? [false] : [false, true]) {
    const violations = await page.evaluate(async ({ isOpen, isLarge }) => {
      window.setpointDrawAll?.();
      if (isOpen) for (const details of document.querySelectorAll("details")) details.open = true;
      const place = isLarge ? { exclude: ["#d-trials"] } : document;
      const { violations } = await axe.run(place, { resultTypes: ["violations"] });
      return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 150)} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
    }, { isOpen, isLarge });
    failures.check("accessibility", `violations, ${colorScheme}${isOpen ? ", details open" : ""}`, violations, []);
  }
  await context.close();
}

async function takeScreenshots(browser, url, folder) {
  mkdirSync(folder, { recursive: true });
  const shots = [...schemes.map((scheme) => [scheme, checks.laptop, scheme]), ["phone", checks.phone, "light"]];
  for (const [name, viewport, colorScheme] of shots) {
    const page = await browser.newPage({ viewport, colorScheme });
    await page.goto(url);
    await page.screenshot({ path: `${folder}/${nameOf(url)}-${name}-first.png` });
    await page.evaluate(() => window.setpointDrawAll?.());
    await page.screenshot({ path: `${folder}/${nameOf(url)}-${name}.png`, fullPage: true });
    await page.close();
  }
}

// Checks the page of a study: a file of a report, or an address of the live server.
export async function checkPage(browser, place, { screenshots } = {}) {
  const url = address(place);
  const failures = new checks.Failures(nameOf(url));
  const context = await browser.newContext({ viewport: checks.laptop, reducedMotion: "reduce" });
  context.setDefaultTimeout(10000);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const page = await checks.open(context, url, failures);
  const study = await checks.readDocument(page);
  let milliseconds = NaN;
  for (const [name, check] of [
    ["command", () => checks.checkFold(page, study, failures)],
    ["keyboard", () => checks.checkKeyboard(page, failures)],
    ["charts", async () => (milliseconds = await checks.checkCharts(page, study, failures))],
    ["tooltip", () => checks.checkHover(page, study, failures)],
    ["selection", () => checks.checkBrush(page, study, failures)],
    ["selectors", () => checks.checkSelectors(page, study, failures)],
    ["copy button", () => checks.checkCopy(page, study, failures)],
    ["colour scheme", () => checks.checkScheme(page, failures)],
    ["printer", () => checks.checkPrint(page, failures)],
    ["phone", () => checks.checkPhone(page, failures)],
    ["policy", () => checks.checkSafety(page, failures)],
  ]) {
    // A page that breaks one check still gets the others.
    await check().catch((error) => failures.holds(name, "the check ends", false, error.message));
  }
  await context.close();
  for (const scheme of schemes) await checkAccessibility(browser, url, scheme, failures, study.trials.length > 300);
  if (screenshots) await takeScreenshots(browser, url, screenshots);
  console.log(`${failures.page}: ${failures.checks} checks, ${failures.list.length} failed; ${study.trials.length} trials, charts drawn in ${Math.round(milliseconds)} ms`);
  return failures.list;
}

// Checks a page without a document: the list of studies, or a comparison.
export async function checkOtherPage(browser, place, { screenshots } = {}) {
  const url = address(place);
  const failures = new checks.Failures(nameOf(url));
  const context = await browser.newContext({ viewport: checks.laptop });
  const page = await checks.open(context, url, failures);
  await checks.checkComparison(page, failures);
  await checks.checkPhone(page, failures);
  await checks.checkSafety(page, failures);
  await context.close();
  for (const scheme of schemes) await checkAccessibility(browser, url, scheme, failures, false);
  if (screenshots) await takeScreenshots(browser, url, screenshots);
  console.log(`${failures.page}: ${failures.checks} checks, ${failures.list.length} failed`);
  return failures.list;
}
