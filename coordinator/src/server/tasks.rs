//! Routes for tasks: publish, list, view, enrol, commit, close, and the documents of their rounds.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use florin_ledger::Terms;
use florin_protocol::{
    Address, Candidates, ClaimProof, CloseRequest, Commit, EnrolRequest, ErrorCode, Invitation,
    MarketId, Offer, Rejection, Report, RoundNumber, Signed, TaskId, TaskSpec, TaskSummary,
    TaskView, UpdateHeader, VerifyError, WorkRecord,
};
use serde::Deserialize;
use tokio::time::Instant;
use tracing::Instrument;

use super::App;
use super::error::{ApiError, ApiResult};
use super::extract::{
    JsonBody, LARGE_BYTES_MAX, PathParams, QueryParams, SMALL_BYTES_MAX, Verified, check_task,
};
use super::finished_rounds::finished_round;
use crate::config::{Config, MIB, WAIT_MS_MAX};
use crate::trace;
use florin_engine::state::ReportedRound;
use florin_engine::{Event, EventStatus, holdout_bytes};

pub(super) async fn publish(
    State(app): State<App>,
    JsonBody(spec): JsonBody<TaskSpec, LARGE_BYTES_MAX>,
) -> ApiResult<Json<TaskView>> {
    spec.check().map_err(|error| ApiError::new(ErrorCode::InvalidTask, error.to_string()))?;
    let (id, terms) = (spec.id(), Terms::from_spec(&spec));
    let (model_bytes, update_bytes) =
        (florin_work::model_bytes(&spec), florin_work::update_bytes(&spec));
    let sizes = check_sizes(app.config(), &spec, update_bytes.max(model_bytes));
    let arbiter = check_arbiter(app.config(), &spec);
    let trainer = check_trainer(app.config(), &spec);
    let event = Event::TaskPublished { spec: Box::new(spec), model_bytes, update_bytes };
    let asked = event.clone();
    if app.host().read(move |engine, now| engine.check(&asked, now)).await?? == EventStatus::New {
        sizes?;
        arbiter?;
        trainer?;
    }
    let open = app.ledger(move |ledger| ledger.task(id)).await?;
    check_escrow(open.as_ref(), &terms)?;
    app.host().write(event).await?;
    app.view(id).await.map(Json)
}

/// Checks that a round's updates and the holdout fit the size limits in the settings.
fn check_sizes(config: &Config, spec: &TaskSpec, update_bytes: u64) -> Result<(), Rejection> {
    let asked = spec.rounds.cohort_target;
    let all = [
        ("rounds.cohort_target", update_bytes.saturating_mul(asked.into()), config.round_mib_max),
        ("holdout.rows", holdout_bytes(spec), config.holdout_mib_max),
    ];
    for (key, bytes, mib) in all {
        let limit = mib.saturating_mul(MIB);
        if bytes > limit {
            let message = format!(
                "{key}: {bytes} bytes; this coordinator accepts {limit} ({asked} updates of \
                 {update_bytes} bytes in a round, decoded; {} rows in the holdout): use fewer",
                spec.holdout.rows
            );
            return Err(Rejection::new(ErrorCode::InvalidTask, message));
        }
    }
    Ok(())
}

/// Checks that the operator accepts the arbiter, which can slash the coordinator's bond.
fn check_arbiter(config: &Config, spec: &TaskSpec) -> Result<(), Rejection> {
    if spec.arbiter == spec.coordinator || config.arbiters.contains(&spec.arbiter) {
        return Ok(());
    }
    let message = format!(
        "arbiter = {}: this coordinator deposits no bond under it; name the coordinator ({}) or an \
         arbiter that its operator has listed in the setting arbiters",
        spec.arbiter, spec.coordinator
    );
    Err(Rejection::new(ErrorCode::ArbiterNotAccepted, message))
}

/// Checks that the operator accepts the code of a model that is a trainer.
fn check_trainer(config: &Config, spec: &TaskSpec) -> Result<(), Rejection> {
    match spec.model.trainer() {
        Some(trainer) if !config.trainers.contains(&trainer.graph.digest) => {
            let message = format!(
                "the model is a program, and this coordinator does not run it: ask its operator to \
                 read the code, and to list its digest {} in the setting trainers",
                trainer.graph.digest
            );
            Err(Rejection::new(ErrorCode::TrainerNotAccepted, message))
        }
        _ => Ok(()),
    }
}

fn check_escrow(open: Option<&florin_ledger::TaskState>, terms: &Terms) -> ApiResult<()> {
    match open {
        None => {
            let message = "no escrow is open for this task: open it on the ledger, then publish";
            Err(ApiError::new(ErrorCode::NotFunded, message))
        }
        Some(open) if open.closed => {
            let message = "this task is closed on the ledger: publish it again with another salt";
            Err(ApiError::new(ErrorCode::TaskClosed, message))
        }
        Some(open) if open.terms != *terms => {
            let message = "the task's terms on the ledger differ from its specification";
            Err(ApiError::new(ErrorCode::NotFunded, message))
        }
        Some(_) => Ok(()),
    }
}

pub(super) async fn list(State(app): State<App>) -> ApiResult<Json<Vec<TaskSummary>>> {
    Ok(Json(app.host().read(|engine, _| engine.summaries()).await?))
}

/// The query string of the long poll for a task's view.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskPollQuery {
    after: Option<u64>,
    #[serde(default)]
    wait_ms: u64,
}

pub(super) async fn view(
    State(app): State<App>,
    PathParams(id): PathParams<TaskId>,
    QueryParams(TaskPollQuery { after, wait_ms }): QueryParams<TaskPollQuery>,
) -> ApiResult<Json<TaskView>> {
    let until = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
    let mut changes = app.host().changes();
    let view = app.view(id).await?;
    let Some(after) = after.filter(|after| view.sequence <= *after) else {
        return Ok(Json(view));
    };
    let later = changes.wait_for(|known| known.get(&id).is_some_and(|now| *now > after));
    if !app.wait_for(until, async { later.await.is_ok() }).await {
        return Ok(Json(view));
    }
    app.view(id).await.map(Json)
}

pub(super) async fn enrol(
    State(app): State<App>,
    PathParams(id): PathParams<TaskId>,
    enrol: Verified<EnrolRequest>,
) -> ApiResult<StatusCode> {
    check_task(enrol.body().task, id)?;
    if let Some(invitation) = &enrol.body().invitation {
        let buyer = app.host().read(move |engine, _| engine.buyer(id)).await??;
        verify_invitation(invitation, app.market(), buyer)?;
    }
    let bond = app.bond(id, enrol.body().sender).await?;
    app.host().write(Event::Enrolled { enrol: enrol.into_signed(), bond }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Verifies the buyer's signature of an invitation. The engine checks what it is for.
fn verify_invitation(
    invitation: &Invitation,
    market: MarketId,
    buyer: Address,
) -> Result<(), Rejection> {
    invitation.verify(market, buyer).map_err(|error| match error {
        VerifyError::WrongMarket => Rejection::new(
            ErrorCode::WrongMarket,
            "the invitation is for another market: ask the buyer for one of this market",
        ),
        error => Rejection::new(
            ErrorCode::InvalidInvitation,
            format!("the task's buyer, {buyer}, did not sign the invitation: {error}"),
        ),
    })
}

pub(super) async fn commit(
    State(app): State<App>,
    PathParams(id): PathParams<TaskId>,
    commit: Verified<Commit>,
) -> ApiResult<StatusCode> {
    check_task(commit.body().scope.task, id)?;
    let (round, sender) = (commit.body().scope.round, commit.body().sender);
    trace::commit_received(id, round, sender);
    let bond = app.bond(id, sender).instrument(trace::ledger_call("bond", id, Some(round))).await?;
    let written = app.host().write(Event::Committed { commit: commit.into_signed(), bond }).await;
    if written.is_err() {
        trace::commit_refused(id, round, sender);
    }
    written?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn report(
    State(app): State<App>,
    PathParams((id, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Json<Signed<Report>>> {
    let report = finished_round(&app, id, round, |past| past.report.clone()).await?;
    Ok(Json(app.node().sign(report)))
}

pub(super) async fn offer(
    State(app): State<App>,
    PathParams((id, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Json<Signed<Offer>>> {
    let running =
        app.host().read(move |engine, _| engine.running_offer(id, round).map(Option::<&_>::cloned));
    let offer = match running.await?? {
        Some(offer) => offer,
        None => finished_round(&app, id, round, |past| past.offer.clone()).await?,
    };
    Ok(Json(app.node().sign(offer)))
}

pub(super) async fn candidates(
    State(app): State<App>,
    PathParams((id, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Json<Candidates>> {
    let running = app
        .host()
        .read(move |engine, _| engine.running_candidates(id, round).map(Option::<&_>::cloned));
    let candidates = match running.await?? {
        Some(candidates) => candidates,
        None => finished_round(&app, id, round, |past| past.candidates.clone()).await?,
    };
    Ok(Json(candidates))
}

pub(super) async fn headers(
    State(app): State<App>,
    PathParams((id, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Json<Vec<Signed<UpdateHeader>>>> {
    let all =
        |past: &ReportedRound| past.updates.iter().map(|update| update.header.clone()).collect();
    finished_round(&app, id, round, all).await.map(Json)
}

pub(super) async fn records(
    State(app): State<App>,
    PathParams((id, round)): PathParams<(TaskId, RoundNumber)>,
) -> ApiResult<Json<Vec<Signed<WorkRecord>>>> {
    let all =
        |past: &ReportedRound| past.records.iter().map(|record| record.signed.clone()).collect();
    finished_round(&app, id, round, all).await.map(Json)
}

pub(super) async fn proof(
    State(app): State<App>,
    PathParams((id, account)): PathParams<(TaskId, Address)>,
) -> ApiResult<Json<ClaimProof>> {
    Ok(Json(app.proofs().tree(app.host(), id).await?.proof(account)))
}

pub(super) async fn close(
    State(app): State<App>,
    PathParams(id): PathParams<TaskId>,
    JsonBody(wish): JsonBody<CloseRequest, SMALL_BYTES_MAX>,
) -> ApiResult<StatusCode> {
    check_task(wish.task, id)?;
    let buyer = app.host().read(move |engine, _| engine.buyer(id)).await??;
    wish.verify(app.market(), buyer)?;
    app.host().write(Event::CloseRequested { task: id }).await?;
    Ok(StatusCode::NO_CONTENT)
}
