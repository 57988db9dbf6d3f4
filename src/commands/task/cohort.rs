//! `florin task cohort`: recomputes the cohort of a round, and shows why each account was selected.

use std::cmp::Reverse;

use florin_protocol::{
    Address, Canonical, ClassHistory, ExplainedCandidate, Offer, RoundNumber, RoundRules,
    SCORE_PARTS, ScorePart, SelectionReason, Standing, TaskHistory, asked_by_attendance,
    explain_cohort,
};
use serde_json::{Value, json};

use crate::cli::TaskCohort;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show::{self, BAD, Cell, GOOD, NOTE, TextTable};

/// Classes of a participant that the table has.
const CLASSES_SHOWN: usize = 3;

pub(super) fn run(arguments: &TaskCohort) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let view = market.task(market.find(&arguments.task)?)?;
    let running = view.offer.as_ref().map(|offer| offer.body.scope.round.0);
    let last = running.unwrap_or(view.reported);
    let number = arguments.round.unwrap_or(last);
    if last == 0 {
        let message = "no round of the task has been offered yet, so that there is no cohort: wait for \
                       enough participants; `florin task show` has their number";
        return Err(Failure::input("ROUNDS_OUT_OF_RANGE", message).into());
    }
    if number == 0 || number > last {
        let message = format!(
            "round {number} has no cohort: the task has rounds 1 to {last} so far; choose one of \
             them by --round"
        );
        return Err(Failure::input("ROUNDS_OUT_OF_RANGE", message).into());
    }
    let (task, round) = (view.id, RoundNumber(number));
    let rules = &view.spec.rounds;
    let mut history = TaskHistory::default();
    for earlier in (1..number).map(RoundNumber) {
        history.add_round(rules.staleness, &market.report(task, earlier)?.body);
    }
    let offer = market.offer(task, round)?.body;
    if offer.cohort.is_empty() {
        let message = format!(
            "round {number} has no cohort: the task ended before it; choose an earlier one by --round"
        );
        return Err(Failure::input("ROUNDS_OUT_OF_RANGE", message).into());
    }
    let candidates = market.candidates(task, round)?;
    let explained = explain_cohort(rules, round, &candidates, &history);
    let agrees = candidates.digest() == offer.candidates && is_same(&offer, &explained);
    let classes = history.classes();
    if arguments.json.json {
        let rows: Vec<Value> = explained.iter().map(|one| as_json(one, classes)).collect();
        show::json(&json!({
            "task": task,
            "round": round,
            "knob": rules.selection.knob.name(),
            "stalled": history.is_stalled(),
            "asked_by_attendance": asked_beyond_target(rules, &history),
            "agrees": agrees,
            "class_losses_nano": classes.losses(),
            "opened": offer.opened,
            "commit_by": offer.commit_by,
            "commits_due_ms": offer.commit_by.ms_since(offer.opened),
            "candidates": rows,
        }))?;
    } else {
        print(&offer, (rules, &history), &explained, agrees);
    }
    Ok(if agrees { Exit::Done } else { Exit::Negative })
}

/// The number of participants to ask by the attendance of earlier cohorts, if it is above the target.
fn asked_beyond_target(rules: &RoundRules, history: &TaskHistory) -> Option<u64> {
    asked_by_attendance(rules, history).filter(|asked| *asked > rules.cohort_target.into())
}

/// Whether the offer has the recomputed cohort and reasons.
fn is_same(offer: &Offer, explained: &[ExplainedCandidate]) -> bool {
    let selected = explained.iter().filter_map(|one| Some((one.account, one.reason?)));
    selected.eq(offer.cohort.iter().copied().zip(offer.reasons.iter().copied()))
        && offer.cohort.len() == offer.reasons.len()
}

fn standing(standing: Standing) -> String {
    match standing {
        Standing::Eligible => "eligible".to_owned(),
        Standing::Newcomer => "newcomer".to_owned(),
        Standing::Reserve => "reserve".to_owned(),
        Standing::Absent => "absent".to_owned(),
        Standing::BondTooSmall => "bond too small".to_owned(),
        Standing::Busy(other) => format!("busy for {}", other.short()),
        Standing::Reserved(other) => format!("left to {}", other.short()),
    }
}

fn as_json(one: &ExplainedCandidate, classes: &ClassHistory) -> Value {
    json!({
        "account": one.account,
        "standing": one.standing,
        "selected": one.history.selected,
        "delivered": one.history.delivered,
        "failed": one.history.failed,
        "rows": one.history.rows,
        "score_nano": one.history.score_nano,
        "error_nano": one.history.error_nano,
        "predicted_ms": one.predicted_ms,
        "score": one.score,
        "levels": one.parts.map(|parts| levels_json(&parts)),
        "reason": one.reason,
        "class_shares": classes.shares(one.account),
    })
}

/// The parts of a score that have a weight, with their names.
fn weighed(parts: &[ScorePart; 5]) -> impl Iterator<Item = (&'static str, ScorePart)> {
    let named = SCORE_PARTS.into_iter().zip(*parts);
    named.filter(|(_, part)| part.weight > 0)
}

fn levels_json(parts: &[ScorePart; 5]) -> Value {
    let each = weighed(parts).map(|(name, part)| {
        (name.to_owned(), json!({ "level": part.level, "weight": part.weight }))
    });
    Value::Object(each.collect())
}

/// The score as a sum of weights and levels; `None` if no candidate has one.
fn score_formula(explained: &[ExplainedCandidate]) -> Option<String> {
    let parts = explained.iter().find_map(|one| one.parts)?;
    let each = weighed(&parts).map(|(name, part)| format!("{} × {name}", part.weight));
    Some(each.collect::<Vec<_>>().join(" + "))
}

/// The levels of a candidate, in the order of the formula.
fn levels(one: &ExplainedCandidate) -> String {
    let Some(parts) = &one.parts else { return "–".to_owned() };
    weighed(parts).map(|(_, part)| part.level.to_string()).collect::<Vec<_>>().join(" ")
}

/// The classes that a participant's updates improve most, with their shares.
fn main_classes(classes: &ClassHistory, account: Address) -> String {
    let Some(shares) = classes.shares(account) else { return "–".to_owned() };
    let mut sorted: Vec<(u16, usize)> = shares.iter().copied().zip(0..).collect();
    sorted.sort_unstable_by_key(|(share, class)| (Reverse(*share), *class));
    let percent = |share: u16| u32::from(share) * 100 / u32::from(ClassHistory::WHOLE);
    let shown = sorted.into_iter().take(CLASSES_SHOWN).filter(|(share, _)| percent(*share) > 0);
    shown
        .map(|(share, class)| format!("{class}: {} %", percent(share)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn print(
    offer: &Offer,
    (rules, history): (&RoundRules, &TaskHistory),
    explained: &[ExplainedCandidate],
    agrees: bool,
) {
    let classes = history.classes();
    let formula = score_formula(explained);
    let has_classes = !classes.losses().is_empty();
    let mut heads =
        vec!["account", "standing", ">asked", ">delivered", ">failed", ">predicted", ">score"];
    if formula.is_some() {
        heads.push("levels");
    }
    if has_classes {
        heads.push("improves");
    }
    heads.push("selected");
    let mut table = TextTable::new(&heads);
    for one in explained {
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1e3);
        let reason = one.reason.map_or("", SelectionReason::name);
        let style = if one.reason.is_some() { GOOD } else { NOTE };
        let mut row: Vec<Cell> = vec![
            one.account.short().into(),
            standing(one.standing).into(),
            one.history.selected.into(),
            one.history.delivered.into(),
            one.history.failed.into(),
            one.predicted_ms.map_or_else(|| "–".to_owned(), seconds).into(),
            one.score.map_or_else(|| "–".to_owned(), |score| score.to_string()).into(),
        ];
        if formula.is_some() {
            row.push(levels(one).into());
        }
        if has_classes {
            row.push(main_classes(classes, one.account).into());
        }
        row.push(Cell::styled(reason, style));
        table.row(row);
    }
    table.print();
    if let Some(formula) = formula {
        let stalled = match history.is_stalled() {
            true => "; the model has stalled, so that the weights are those of a stalled task",
            false => "",
        };
        show::sentence(&format!("score = {formula}, with levels from 0 to 16{stalled}"));
    }
    if let Some(asked) = asked_beyond_target(rules, history) {
        let (wanted, most) = (rules.cohort_target, rules.selection_size());
        show::sentence(&format!(
            "by the part of earlier cohorts that committed, {asked} participants are to be asked for {wanted} updates; \
             the task has {most} places, and this round asked {}",
            offer.cohort.len()
        ));
    }
    let knob = rules.selection.knob.name();
    let wait = offer.commit_by.ms_since(offer.opened);
    let wait = florin_protocol::format_ms(wait);
    let round = offer.scope.round;
    anstream::println!("round {round}, selection {knob}: commits are due {wait} after the offer");
    if agrees {
        anstream::println!("{GOOD}the offer has this cohort{GOOD:#}");
    } else {
        anstream::println!("{BAD}the offer has another cohort or other candidates{BAD:#}");
    }
}
