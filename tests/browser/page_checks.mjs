// Checks of one page of a study. Each check records failures that name the page, the chart and both values.

import { expectedAxes, expectedCharts, expectedSelection, expectedSeries, tradeoff } from "./expected.mjs";

export const laptop = { width: 1366, height: 768 };
export const phone = { width: 390, height: 844 };

export class Failures {
  list = [];
  checks = 0;

  constructor(page) {
    this.page = page;
  }

  check(chart, statement, actual, expected) {
    this.checks += 1;
    const [a, e] = [actual, expected].map((value) => JSON.stringify(value) ?? "undefined");
    if (a === e) return;
    const short = (text) => (text.length > 600 ? `${text.slice(0, 600)}…` : text);
    this.list.push(`${this.page}: ${chart}: ${statement}: expected ${short(e)}, found ${short(a)}`);
  }

  holds(chart, statement, holds, found = "") {
    this.checks += 1;
    if (!holds) this.list.push(`${this.page}: ${chart}: ${statement}: found ${JSON.stringify(found)}`);
  }
}

// Opens a page and records console messages, errors, violations of the policy, and requests to other places.
export async function open(context, url, failures) {
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  page.on("console", (message) => failures.holds("console", "no message of the page", !["error", "warning"].includes(message.type()), message.text()));
  page.on("pageerror", (error) => failures.holds("console", "no error of the page", false, error.message));
  const { protocol, origin } = new URL(url);
  page.on("request", (request) => {
    const isOwn = request.url().startsWith("data:") || (protocol === "file:" ? request.url().split("#")[0] === url : new URL(request.url()).origin === origin);
    failures.holds("network", "no request to another place", isOwn, request.url());
  });
  await page.goto(url);
  return page;
}

export const readDocument = (page) => page.evaluate(() => JSON.parse(document.getElementById("document").textContent));

const selections = (page) =>
  page.evaluate(() => Object.fromEntries([...document.querySelectorAll("main select[id]")].map((select) => [select.id, select.value])));

// Data of the series of a chart, read from its instance.
function seriesOf(page, chart) {
  return page.evaluate((name) => {
    const instance = window.setpointCharts[name];
    return Object.fromEntries(instance.getOption().series.map((series) => [series.id, (series.data ?? []).map((item) => item?.value ?? item)]));
  }, chart);
}

async function samplesOf(page, document, trial) {
  if (document.timelines_url === null) return document.timelines[trial];
  const url = document.timelines_url.replace("{trial}", trial);
  return page.evaluate(async (address) => (await fetch(address)).json(), url);
}

async function checkSeries(page, document, chart, failures) {
  const selected = await selections(page);
  if (chart === "timeline" && document.timelines_url !== null) {
    await page.waitForFunction(() => window.setpointCharts.timeline?.getOption()?.series?.length > 0, null, { timeout: 10000 });
  }
  const samples = chart === "timeline" ? await samplesOf(page, document, selected["timeline-trial"]) : null;
  const expected = expectedSeries(chart, document, selected, samples);
  const found = await seriesOf(page, chart);
  if (chart === "predicted") {
    const [[x1, y1], [x2, y2]] = found.diagonal;
    failures.holds(chart, "the diagonal joins equal values", x1 === y1 && x2 === y2 && x1 < x2, found.diagonal);
    delete found.diagonal;
  }
  failures.check(chart, "the series", Object.keys(found).sort(), Object.keys(expected).sort());
  for (const [id, data] of Object.entries(expected)) failures.check(chart, `data of ${id}`, found[id], data);
}

async function checkParallelNumbers(page, document, failures) {
  const { axes, trials } = expectedAxes(document);
  const found = await page.evaluate(() => {
    const option = window.setpointCharts.parallel.getOption();
    return { axes: option.parallelAxis.map((axis) => axis.id), items: option.series[0].data.map(({ trial, value }) => [trial, value]) };
  });
  failures.check("parallel", "the axes", found.axes, axes.map((one) => one.id));
  const expected = trials.map((trial) => [trial.trial, axes.map((one) => one.read(trial))]);
  failures.check("parallel", "the lines", found.items.sort((a, b) => a[0] - b[0]), expected.sort((a, b) => a[0] - b[0]));
}

// Each chart is drawn with the document's numbers. Sections without data have a sentence instead.
export async function checkCharts(page, document, failures) {
  const milliseconds = await page.evaluate(() => {
    const start = performance.now();
    window.setpointDrawAll();
    return performance.now() - start;
  });
  failures.holds("page", "all charts are drawn within 4 s", milliseconds < 4000, milliseconds);
  const names = await page.evaluate(() => [...document.querySelectorAll("figure[data-chart]")].map((figure) => figure.dataset.chart));
  failures.check("page", "the charts of the page", names.sort(), expectedCharts(document).sort());
  for (const chart of names) {
    const state = await page.evaluate((name) => {
      const plot = document.querySelector(`figure[data-chart="${name}"] .plot`);
      const animation = window.setpointCharts[name]?.getOption().animation;
      return { shapes: plot.querySelectorAll("svg path").length, label: plot.getAttribute("aria-label"), animation };
    }, chart);
    failures.holds(chart, "the chart is drawn", state.shapes > 2, state.shapes);
    failures.holds(chart, "the chart has a label", state.label?.length > 20, state.label);
    failures.check(chart, "the chart is not animated", state.animation, false);
    if (chart === "parallel") await checkParallelNumbers(page, document, failures);
    else await checkSeries(page, document, chart, failures);
  }
  const silent = await page.evaluate(() =>
    [...document.querySelectorAll("section[data-section]")]
      .filter((section) => !section.querySelector("figure, .empty, .verdict, .command, details, table"))
      .map((section) => section.id),
  );
  failures.check("page", "sections without data and without a sentence", silent, []);
  return milliseconds;
}

// Every choice of a selector shows the document's numbers, at most six of each.
export async function checkSelectors(page, document, failures) {
  const selectors = { "tradeoff-y": "tradeoff", "load-metric": "load", "importance-about": "importance", "importance-parameter": "dependence", "timeline-trial": "timeline" };
  for (const [id, chart] of Object.entries(selectors)) {
    if ((await page.locator(`#${id}`).count()) === 0) continue;
    const values = await page.locator(`#${id} option`).evaluateAll((options) => options.map((option) => option.value));
    for (const value of [...values.slice(1, 6), values[0]]) {
      await page.selectOption(`#${id}`, value);
      await checkSeries(page, document, chart, failures);
    }
  }
}

const chartTexts = (page, chart) => page.locator(`figure[data-chart="${chart}"] svg text`).allTextContents();

// The pointer on the most isolated trial shows the trial's number and values.
export async function checkHover(page, document, failures) {
  if ((await page.locator("#tradeoff-x").count()) === 0) return;
  await page.locator('figure[data-chart="tradeoff"] .plot').scrollIntoViewIfNeeded();
  const [x, y] = [await page.inputValue("#tradeoff-x"), await page.inputValue("#tradeoff-y")];
  const points = [...(tradeoff(document, x, y).within ?? []), ...(tradeoff(document, x, y).over ?? [])];
  const pixels = await page.evaluate((points) => points.map((point) => window.setpointCharts.tradeoff.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, point.slice(0, 2))), points);
  const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const room = pixels.map((pixel, index) => Math.min(1e9, ...pixels.filter((_, other) => other !== index).map((other) => distance(pixel, other))));
  const best = room.indexOf(Math.max(...room));
  const box = await page.locator('figure[data-chart="tradeoff"] .plot').boundingBox();
  await page.mouse.move(box.x + pixels[best][0] - 40, box.y + pixels[best][1] - 40);
  await page.mouse.move(box.x + pixels[best][0], box.y + pixels[best][1], { steps: 4 });
  await page.waitForTimeout(150);
  const texts = await chartTexts(page, "tradeoff");
  const [trial] = points[best].slice(2);
  const title = texts.find((text) => text.startsWith("trial "));
  const origin = document.trials.find((one) => one.trial === trial).origin.replaceAll("_", " ");
  failures.check("tradeoff", "the title of the tooltip", title, `trial ${trial}, ${origin}`);
  const number = texts.map((text) => text.replaceAll("\u200b", "")).find((text) => text.startsWith(`${x}: `))?.slice(x.length + 2);
  const share = Math.abs(Number(number) / points[best][0] - 1);
  failures.holds("tradeoff", `the tooltip shows ${points[best][0]}`, share < 0.001, number);
  await page.mouse.move(0, 0);
}

const listed = (page) => page.locator("#brush-results tbody tr td:first-child").allTextContents();

async function checkSelection(page, document, how, failures) {
  await page.waitForTimeout(200);
  const state = await page.evaluate(() => {
    const model = window.setpointCharts.parallel.getModel();
    const series = model.getSeriesByIndex(0);
    const data = window.setpointCharts.parallel.getOption().series[0].data;
    const active = series.getRawIndicesByActiveState("active").map((index) => data[index].trial);
    const axes = window.setpointCharts.parallel.getOption().parallelAxis.map((_, index) => model.getComponent("parallelAxis", index));
    return { active, intervals: Object.fromEntries(axes.filter((axis) => axis.activeIntervals.length > 0).map((axis) => [axis.id, axis.activeIntervals[0]])) };
  });
  const expected = expectedSelection(document, state.intervals);
  failures.holds("parallel", `${how} sets an interval`, Object.keys(state.intervals).length > 0, state.intervals);
  failures.check("parallel", `trials listed after ${how}`, await listed(page), expected.slice(0, 100).map(String));
  failures.check("parallel", `lines highlighted after ${how}`, state.active.sort((a, b) => a - b), [...expected].sort((a, b) => a - b));
  const status = await page.textContent("#brush-status");
  failures.holds("parallel", `the status names ${expected.length} trials after ${how}`, status.startsWith(`${expected.length} of `), status);
  return state.intervals;
}

// Selecting trials by dragging along an axis, and with the form from the keyboard.
export async function checkBrush(page, document, failures) {
  if ((await page.locator("#brush").count()) === 0) return;
  const { axes, trials } = expectedAxes(document);
  const dim = axes.findIndex((one) => one.isNumber);
  const axis = axes[dim];
  const values = [...new Set(trials.map(axis.read))].filter((value) => value !== "-").sort((a, b) => a - b);
  const [low, high] = [values[Math.floor(values.length / 3)], values[Math.floor((2 * values.length) / 3)]];
  await page.locator('figure[data-chart="parallel"] .plot').scrollIntoViewIfNeeded();
  const box = await page.locator('figure[data-chart="parallel"] .plot').boundingBox();
  const [from, to] = await page.evaluate(
    ({ values, dim }) => {
      const system = window.setpointCharts.parallel.getModel().getComponent("parallel").coordinateSystem;
      return values.map((value) => system.dataToPoint(value, `dim${dim}`));
    },
    { values: [low, high], dim },
  );
  const along = (start, end) => Math.sign(end - start) * 3;
  await page.mouse.move(box.x + from[0] - along(from[0], to[0]), box.y + from[1] - along(from[1], to[1]));
  await page.mouse.down();
  await page.mouse.move(box.x + to[0] + along(from[0], to[0]), box.y + to[1] + along(from[1], to[1]), { steps: 6 });
  await page.mouse.up();
  const intervals = await checkSelection(page, document, "a drag", failures);
  const dragged = intervals[axis.id] ?? [];
  failures.holds("parallel", `a drag from ${low} to ${high} contains both`, dragged[0] <= low && high <= dragged[1], dragged);

  await page.locator("#brush-clear").focus();
  await page.keyboard.press("Enter");
  failures.check("parallel", "the status after clearing", await page.textContent("#brush-status"), "No trials are selected.");

  for (const one of [axis, axes.find((one) => !one.isNumber)].filter(Boolean)) {
    await page.locator("#brush-parameter").focus();
    await page.keyboard.press("Home");
    for (let step = 0; step < axes.indexOf(one); step++) await page.keyboard.press("ArrowDown");
    failures.check("parallel", "the parameter chosen with arrow keys", await page.inputValue("#brush-parameter"), one.id);
    const visible = await page.locator("#brush input, #brush-choice").evaluateAll((inputs) => inputs.filter((input) => input.checkVisibility()).map((input) => input.id));
    failures.check("parallel", `the inputs for ${one.name}`, visible, one.isNumber ? ["brush-low", "brush-high"] : ["brush-choice"]);
    await page.keyboard.press("Tab");
    if (one.isNumber) {
      await page.keyboard.type(String(low));
      await page.keyboard.press("Tab");
      await page.keyboard.type(String(high));
      await page.keyboard.press("Enter");
    } else {
      await page.keyboard.press("End");
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
    }
    const set = await checkSelection(page, document, `the form for ${one.name}`, failures);
    const last = one.values.length - 1;
    failures.check("parallel", "the interval of the form", set[one.id], one.isNumber ? [low, high] : [last - 0.4, last + 0.4]);
  }
  await page.locator("#brush-clear").click();
}

export async function checkCopy(page, document, failures) {
  if (document.winner === null) return;
  const button = page.locator('button[data-copy="winner-command"]');
  await button.click();
  await page.waitForFunction(() => document.getElementById("copy-status").textContent !== "");
  failures.check("command", "the announcement", await page.textContent("#copy-status"), "Copied.");
  failures.check("command", "the copied text", await page.evaluate(() => navigator.clipboard.readText()), document.winner.command);
}

// The chart of a comparison shows the numbers of both documents.
export async function checkComparison(page, failures) {
  const studies = await page.evaluate(() => JSON.parse(document.getElementById("documents")?.textContent ?? "[]"));
  if (!studies.some(({ document }) => document.trials.length > 0)) return;
  await page.evaluate(() => window.setpointDrawAll());
  const found = await seriesOf(page, "comparison");
  const pairs = (trials, key) => trials.filter((trial) => trial[key] !== null).map((trial) => [trial.trial, trial[key]]);
  for (const [index, { document }] of studies.entries()) {
    failures.check("comparison", `best values of study ${index}`, found[`best-${index}`], pairs(document.trials, "best"));
    failures.check("comparison", `trials of study ${index}`, found[`trials-${index}`], pairs(document.trials, "value"));
  }
}

// The command is on the first screen of a laptop.
export async function checkFold(page, document, failures) {
  if (document.winner === null) return;
  await page.evaluate(() => scrollTo(0, 0));
  for (const selector of [".command pre", '[data-copy="winner-command"]']) {
    const box = await page.locator(selector).first().boundingBox();
    failures.holds("command", `${selector} ends above ${laptop.height} px`, box.y + box.height <= laptop.height, box);
  }
}

export async function checkPhone(page, failures) {
  await page.setViewportSize(phone);
  await page.waitForTimeout(200);
  const wide = await page.evaluate(() => {
    window.setpointDrawAll?.();
    scrollTo(10000, 0);
    return { page: document.documentElement.scrollWidth, window: innerWidth, scrolled: scrollX };
  });
  failures.holds("page", `no horizontal scrolling at ${phone.width} px`, wide.page <= wide.window && wide.scrolled === 0, wide);
  await page.setViewportSize(laptop);
}

// The Tab key alone reaches every button and selector.
export async function checkKeyboard(page, failures) {
  await page.evaluate(() => {
    scrollTo(0, 0);
    document.activeElement?.blur();
  });
  const wanted = await page.evaluate(() => {
    const shown = (element) => element.checkVisibility() && !element.closest("details:not([open])");
    return [...document.querySelectorAll("main button, main select, main input")].filter(shown).map((element) => element.id || element.dataset.copy || element.textContent);
  });
  const reached = new Set();
  let first = null;
  for (let step = 0; step < 300 && (step === 0 || wanted.some((name) => !reached.has(name))); step++) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => {
      const element = document.activeElement;
      return element.id || element.dataset.copy || element.textContent;
    });
    first ??= name;
    reached.add(name);
  }
  failures.check("keyboard", "the first stop of the Tab key", first, "Skip to the content");
  failures.check("keyboard", "elements that the Tab key does not reach", wanted.filter((name) => !reached.has(name)), []);
}

// Charts near the visible part follow a change of the colour scheme.
export async function checkScheme(page, failures) {
  const name = await page.evaluate(() => document.querySelector("figure[data-chart]")?.dataset.chart ?? null);
  if (name === null) return;
  await page.locator(`figure[data-chart="${name}"]`).scrollIntoViewIfNeeded();
  const colors = () => page.evaluate((name) => [window.setpointCharts[name].getOption().textStyle.color, getComputedStyle(document.documentElement).getPropertyValue("--text")], name);
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme });
    await page.waitForTimeout(300);
    const [drawn, wanted] = await colors();
    failures.check(name, `the colour of texts after a change to ${colorScheme}`, drawn, wanted);
  }
}

// All charts are drawn for the printer, in light colours and no wider than the paper.
export async function checkPrint(page, failures) {
  const found = await page.evaluate(() => {
    dispatchEvent(new Event("beforeprint"));
    const plots = [...document.querySelectorAll("figure[data-chart] .plot")];
    const widths = plots.map((plot) => plot.querySelector("svg")?.clientWidth ?? 0);
    const ground = getComputedStyle(document.body).backgroundColor;
    dispatchEvent(new Event("afterprint"));
    return { widths, ground };
  });
  failures.holds("print", "all charts have the width of the paper", found.widths.every((width) => width > 0 && width <= 660), found.widths);
  failures.check("print", "the ground is light", found.ground, "rgb(245, 246, 248)");
}

export async function checkSafety(page, failures) {
  const state = await page.evaluate(() => ({ violations: window.violations, images: document.images.length, pwned: window.pwned ?? null }));
  failures.check("policy", "violations, images, and traces of injected scripts", state, { violations: [], images: 0, pwned: null });
}
