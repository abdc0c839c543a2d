//! The live pages over HTTP. They only read the database, so that they can start and stop at any time.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::get;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::access::{AccessRules, guard};
use super::cache::{PageCache, PagesError, url_segment};
use super::events::{events, follow_changes};
use super::read::CommandNames;
use crate::report::{
    PROMETHEUS_TYPE, StudyDocument, Timeline, comparison_page, page_assets, prometheus_text, studies_comparison,
    studies_page,
};
use crate::store::{Store, Study};
use crate::study_report::{ComparedSide, ConfigurationComparison};

/// The parts that all requests share.
#[derive(Clone)]
struct Pages {
    cache: Arc<PageCache>,
    changes: watch::Sender<u64>,
    stop: watch::Receiver<bool>,
}

/// A reason for which a request has no page.
enum PageFailure {
    /// The address names nothing.
    NotFound(String),
    Failed(PagesError),
}

impl<E: Into<PagesError>> From<E> for PageFailure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl IntoResponse for PageFailure {
    fn into_response(self) -> Response {
        match self {
            Self::NotFound(what) => (StatusCode::NOT_FOUND, format!("{what}\n")).into_response(),
            Self::Failed(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        }
    }
}

/// Serves the studies of a database until `stop` is set.
///
/// # Errors
/// If the listener fails.
pub(crate) async fn serve(
    listener: TcpListener,
    store: Store,
    names: CommandNames,
    rules: AccessRules,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let cache = Arc::new(PageCache::new(store, names));
    let pages = Pages { changes: follow_changes(Arc::clone(&cache)), cache, stop: stop.clone() };
    let router = Router::new()
        .route("/", get(list))
        .route("/studies/{name}", get(study))
        .route("/studies/{name}/document", get(document))
        .route("/studies/{name}/events", get(changes))
        .route("/studies/{name}/timelines/{trial}", get(timeline))
        .route("/compare", get(compare))
        .route("/metrics", get(metrics))
        .route("/assets/{name}", get(asset))
        .fallback(async || PageFailure::NotFound("this address names no page".to_owned()))
        .with_state(pages)
        .layer(from_fn_with_state(Arc::new(rules), guard));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let graceful = async move { drop(stop.wait_for(|stop| *stop).await) };
    axum::serve(listener, service).with_graceful_shutdown(graceful).await
}

impl Pages {
    async fn find(&self, name: &str) -> Result<Study, PageFailure> {
        let study = self.cache.store().study(name).await?;
        study.ok_or_else(|| PageFailure::NotFound(format!("the database has no study {name:?}")))
    }
}

async fn list(State(pages): State<Pages>) -> Result<Html<String>, PageFailure> {
    let mut studies = Vec::new();
    for (study, _) in pages.cache.store().studies().await?.into_iter().rev() {
        let page = pages.cache.page(&study).await?;
        studies.push(page.document.summary_json(&format!("/studies/{}", url_segment(&study.name))));
    }
    Ok(Html(studies_page(&studies)?))
}

async fn study(State(pages): State<Pages>, Path(name): Path<String>) -> Result<Html<String>, PageFailure> {
    let study = pages.find(&name).await?;
    Ok(Html(pages.cache.page(&study).await?.html.to_string()))
}

async fn document(State(pages): State<Pages>, Path(name): Path<String>) -> Result<Response, PageFailure> {
    let study = pages.find(&name).await?;
    Ok(Json(pages.cache.page(&study).await?.document.to_json()?).into_response())
}

async fn changes(State(pages): State<Pages>, Path(name): Path<String>) -> Result<Response, PageFailure> {
    let study = pages.find(&name).await?;
    let stop = pages.stop.clone();
    Ok(events(Arc::clone(&pages.cache), study, pages.changes.subscribe(), stop).into_response())
}

async fn timeline(
    State(pages): State<Pages>,
    Path((name, trial)): Path<(String, u32)>,
) -> Result<Response, PageFailure> {
    let study = pages.find(&name).await?;
    let stored = pages.cache.store().telemetry(&study, trial).await?;
    let found = stored.and_then(|stored| Timeline::new(&stored.series));
    let missing = || PageFailure::NotFound(format!("trial {trial} of study {name:?} has no samples over time"));
    Ok(Json(found.ok_or_else(missing)?).into_response())
}

#[derive(Deserialize)]
struct ComparedNames {
    a: String,
    b: String,
}

async fn compare(State(pages): State<Pages>, Query(names): Query<ComparedNames>) -> Result<Html<String>, PageFailure> {
    let [a, b] = [pages.find(&names.a).await?, pages.find(&names.b).await?];
    let [first, second] = [pages.cache.page(&a).await?.document, pages.cache.page(&b).await?.document];
    let sides = [side(&pages, a, &first).await?, side(&pages, b, &second).await?];
    let winners = match sides {
        [Some(a), Some(b)] => Some(ConfigurationComparison::of([a, b])),
        _ => None,
    };
    Ok(Html(comparison_page(&studies_comparison([&first, &second], winners.as_ref())?)?))
}

/// Reads the winner of a study; `None` without one.
async fn side(pages: &Pages, study: Study, document: &StudyDocument) -> Result<Option<ComparedSide>, PageFailure> {
    let Some(number) = document.winning_trial() else { return Ok(None) };
    let store = pages.cache.store();
    let Some(scored) = store.trial(&study, number).await? else { return Ok(None) };
    Ok(Some(ComparedSide::read(store, study, scored).await?))
}

async fn metrics(State(pages): State<Pages>) -> Result<Response, PageFailure> {
    let mut documents = Vec::new();
    for (study, _) in pages.cache.store().studies().await? {
        documents.push(pages.cache.page(&study).await?.document);
    }
    let text = prometheus_text(documents.iter().map(AsRef::as_ref)).map_err(PagesError::from)?;
    Ok(([(CONTENT_TYPE, PROMETHEUS_TYPE)], text).into_response())
}

async fn asset(Path(name): Path<String>) -> Result<Response, PageFailure> {
    let asset = page_assets().find(|asset| asset.name == name);
    let missing = || PageFailure::NotFound(format!("there is no file {name:?}"));
    let asset = asset.ok_or_else(missing)?;
    // A newer release may have another file of this name.
    let headers = [(CONTENT_TYPE, asset.media_type), (CACHE_CONTROL, "private, max-age=300")];
    Ok((headers, asset.content).into_response())
}
