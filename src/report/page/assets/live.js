// Live updates of a study's page. On each change the page is fetched again, and the parts that differ are replaced.
// The scroll position, open <details>, selections and the focus stay.
"use strict";

(() => {
  const status = document.getElementById("connection");
  const address = location.pathname.replace(/\/$/, "");
  const time = () => new Date().toLocaleTimeString([], { hour12: false });

  function report(state, text) {
    status.dataset.state = state;
    if (status.textContent !== text) status.textContent = text;
  }

  const chartsIn = (element) => [...element.querySelectorAll("figure[data-chart]")].map((figure) => figure.dataset.chart).join();

  function replace(old, fresh) {
    for (const details of old.querySelectorAll("details[id]")) {
      const next = fresh.querySelector(`#${CSS.escape(details.id)}`);
      if (next) next.open = details.open;
    }
    const scrolled = [...old.querySelectorAll(".scroll, pre")].map((element) => [element.scrollLeft, element.scrollTop]);
    const adopted = document.adoptNode(fresh);
    old.replaceWith(adopted);
    [...adopted.querySelectorAll(".scroll, pre")].forEach((element, index) => {
      if (scrolled[index]) [element.scrollLeft, element.scrollTop] = scrolled[index];
    });
  }

  const hasFocus = (element) => element.contains(document.activeElement);

  // The elements of the fetched page, by the value of `attribute`.
  const pairs = (page, attribute) =>
    [...page.querySelectorAll(`[${attribute}]`)].map((fresh) => [
      document.querySelector(`[${attribute}="${CSS.escape(fresh.getAttribute(attribute))}"]`),
      fresh,
    ]);

  // Returns whether a part with the focus was left as it is.
  function replaceParts(page) {
    let isLeft = false;
    const originals = new Map(pairs(page, "data-part").map(([, fresh]) => [fresh.dataset.part, fresh.outerHTML]));
    for (const [old, fresh] of pairs(page, "data-section")) {
      if (!old || chartsIn(old) === chartsIn(fresh)) continue;
      if (hasFocus(old)) isLeft = true;
      else replace(old, fresh);
    }
    for (const [old, fresh] of pairs(page, "data-part")) {
      if (!old || shown.get(fresh.dataset.part) === fresh.outerHTML) continue;
      if (hasFocus(old)) {
        isLeft = true;
        originals.delete(fresh.dataset.part);
      } else {
        replace(old, fresh);
      }
    }
    for (const [part, html] of originals) shown.set(part, html);
    return isLeft;
  }

  // HTML of the parts as the server sent it: open <details> do not count as changes.
  const shown = new Map(
    [...document.querySelectorAll("[data-part]")].map((part) => {
      const copy = part.cloneNode(true);
      for (const details of copy.querySelectorAll("details")) details.open = false;
      return [part.dataset.part, copy.outerHTML];
    }),
  );

  let isFetching = false;
  let isStale = false;

  async function refresh() {
    if (isFetching) {
      isStale = true;
      return;
    }
    isFetching = true;
    isStale = false;
    try {
      const response = await fetch(address, { cache: "no-store" });
      if (!response.ok) throw new Error(`status ${response.status}`);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const data = page.getElementById("document").textContent;
      const isLeft = replaceParts(page);
      document.title = page.title;
      document.getElementById("document").textContent = data;
      StudyCharts.update(JSON.parse(data));
      if (isLeft) addEventListener("focusout", () => setTimeout(refresh), { once: true });
      report("connected", `Live, updated ${time()}`);
    } catch (error) {
      report("reconnecting", `Not updated since ${time()}: ${error.message}`);
    }
    isFetching = false;
    if (isStale) refresh();
  }

  let lost = null;
  const events = new EventSource(`${address}/events`);
  events.addEventListener("open", () => {
    report("connected", `Live since ${time()}`);
    if (lost !== null) refresh();
    lost = null;
  });
  events.addEventListener("change", refresh);
  events.addEventListener("error", () => {
    lost ??= time();
    report("reconnecting", events.readyState === EventSource.CLOSED ? `Disconnected since ${lost}. Reload the page.` : `Reconnecting since ${lost}`);
  });
})();
