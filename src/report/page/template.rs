//! Renders documents as HTML: the file of a report, and the live pages. Templates, styles and scripts are files beside
//! this one.

use std::sync::LazyLock;

use jiff::Timestamp;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use rand::RngExt;
use serde::Serialize;
use serde_json::Value as Json;

use crate::report::table::number;
use crate::report::terminal::short_duration;

/// A failure to render a page: a defect of its template.
#[derive(Debug, thiserror::Error)]
#[error("the page cannot be rendered: {0:#}")]
pub(crate) struct PageError(#[from] minijinja::Error);

/// A file that pages load from the address `/assets/NAME`.
#[derive(Debug)]
pub(crate) struct PageAsset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub content: &'static str,
}

const STYLE: &str = include_str!("assets/page.css");
const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";

const fn script(name: &'static str, content: &'static str) -> PageAsset {
    PageAsset { name, media_type: SCRIPT_TYPE, content }
}

/// The scripts of a report, in the order of loading.
const SCRIPTS: [PageAsset; 7] = [
    script("echarts.js", include_str!("assets/echarts.js")),
    script("charts.js", include_str!("assets/charts.js")),
    script("charts_gain.js", include_str!("assets/charts_gain.js")),
    script("charts_space.js", include_str!("assets/charts_space.js")),
    script("charts_model.js", include_str!("assets/charts_model.js")),
    script("charts_time.js", include_str!("assets/charts_time.js")),
    script("page.js", include_str!("assets/page.js")),
];

/// The files of live pages besides `SCRIPTS`.
const LIVE_ASSETS: [PageAsset; 2] = [
    PageAsset { name: "page.css", media_type: "text/css; charset=utf-8", content: STYLE },
    script("live.js", include_str!("assets/live.js")),
];

/// Returns the files that live pages load.
pub(crate) fn page_assets() -> impl Iterator<Item = &'static PageAsset> {
    SCRIPTS.iter().chain(&LIVE_ASSETS)
}

/// The licence of a program of others that pages contain.
#[derive(Debug, Serialize)]
pub(crate) struct EmbeddedLicense {
    pub name: &'static str,
    pub version: &'static str,
    pub license: &'static str,
    pub notice: &'static str,
}

/// The licences of all embedded scripts of others. `echarts/package-lock.json` has their versions.
pub(crate) const EMBEDDED_LICENSES: [EmbeddedLicense; 3] = [
    EmbeddedLicense {
        name: "Apache ECharts",
        version: "6.1.0",
        license: "Apache-2.0",
        notice: include_str!("licenses/echarts.txt"),
    },
    EmbeddedLicense {
        name: "ZRender",
        version: "6.1.0",
        license: "BSD-3-Clause",
        notice: include_str!("licenses/zrender.txt"),
    },
    EmbeddedLicense { name: "tslib", version: "2.3.0", license: "0BSD", notice: include_str!("licenses/tslib.txt") },
];

static TEMPLATES: LazyLock<Environment<'static>> =
    LazyLock::new(|| templates().unwrap_or_else(|error| panic!("bug: {error:#}")));

fn templates() -> Result<Environment<'static>, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    for (name, source) in [
        ("layout.html", include_str!("templates/layout.html")),
        ("parts.html", include_str!("templates/parts.html")),
        ("study.html", include_str!("templates/study.html")),
        ("study_analysis.html", include_str!("templates/study_analysis.html")),
        ("studies.html", include_str!("templates/studies.html")),
        ("compare.html", include_str!("templates/compare.html")),
    ] {
        templates.add_template(name, source)?;
    }
    templates.add_filter("number", number);
    templates.add_filter("percent", |share: f64| format!("{:.1} %", 100.0 * share));
    templates.add_filter("duration", short_duration);
    templates.add_filter("time", |instant: String| time_text(&instant));
    Ok(templates)
}

/// Returns an instant such as `2030-01-02 03:04:05 UTC`. A text that is no instant stays.
pub(super) fn time_text(instant: &str) -> String {
    instant
        .parse::<Timestamp>()
        .map_or_else(|_| instant.to_owned(), |instant| instant.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn render(template: &str, variables: Value) -> Result<String, PageError> {
    Ok(TEMPLATES.get_template(template)?.render(variables)?)
}

/// Renders the report of a study as one file that needs no other. `document` is [`StudyDocument`](super::StudyDocument)
/// as JSON.
///
/// # Errors
/// If a template is defective.
pub(crate) fn report_html(document: &Json) -> Result<String, PageError> {
    // Only scripts and styles with this random word run, so that no text of a study can become a script.
    let nonce = format!("{:032x}", rand::rng().random::<u128>());
    let scripts: Vec<_> = SCRIPTS.iter().map(|script| script.content).collect();
    let (document, licenses) = (Value::from(Serde(document)), Value::from(Serde(&EMBEDDED_LICENSES)));
    render("study.html", context! { document, nonce, scripts, style => STYLE, is_live => false, base => "", licenses })
}

/// Renders the live page of a study.
///
/// # Errors
/// If a template is defective.
pub(crate) fn live_page(document: &Json) -> Result<String, PageError> {
    let (document, licenses) = (Value::from(Serde(document)), Value::from(Serde(&EMBEDDED_LICENSES)));
    render("study.html", context! { document, is_live => true, base => "", licenses })
}

/// Renders the list of studies. Each has `name`, `url`, `text`, `counts`, `is_running` and `verdict`.
///
/// # Errors
/// If a template is defective.
pub(crate) fn studies_page(studies: &[Json]) -> Result<String, PageError> {
    render("studies.html", context! { studies => Value::from(Serde(studies)), is_live => true, base => "" })
}

/// Renders the comparison of two studies.
///
/// # Errors
/// If a template is defective.
pub(crate) fn comparison_page(comparison: &Json) -> Result<String, PageError> {
    render("compare.html", context! { is_live => true, base => "", ..Value::from(Serde(comparison)) })
}
