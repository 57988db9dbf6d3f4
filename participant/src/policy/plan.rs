//! Which tasks a client joins and leaves: a pure function of the predictions.
//!
//! Small differences change nothing: a task is left only after [`WEAK_REVIEWS`] reviews in a row in
//! which it pays too little, or in which another one without a place pays much more.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::{Amount, TaskId};

use super::prediction::florins;
use super::refusal::TaskRefusal;
use super::{LEAVE_BELOW_PERCENT, REPLACE_ABOVE_PERCENT, WEAK_REVIEWS};

const PERCENT: f64 = 100.0;

/// A task that the client can serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenTask {
    /// The task.
    pub task: TaskId,
    /// Predicted florins for an hour of training.
    pub per_hour: f64,
    /// The bond with which the first row counts.
    pub bond_least: Amount,
    /// The bond for all rows.
    pub bond_wanted: Amount,
}

/// A task in which the client takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnTask {
    /// Predicted florins for an hour of training; `None` if it is unknown now.
    pub per_hour: Option<f64>,
    /// Reviews in a row in which it was weak.
    pub weak: u32,
    /// Whether it needs the device no more: it only settles.
    pub is_over: bool,
}

/// Everything that a plan follows from.
#[derive(Clone, Debug)]
pub struct PlanInputs {
    /// Most tasks at the same time.
    pub tasks_max: usize,
    /// The least florins for an hour of training.
    pub per_hour_min: Amount,
    /// The part of the limit on all bonds that is left.
    pub bond_left: Amount,
    /// Whether tasks may be joined now.
    pub is_open: bool,
    /// The tasks in which the client takes part.
    pub own: BTreeMap<TaskId, OwnTask>,
    /// The other tasks that it can serve.
    pub open: Vec<OpenTask>,
}

/// The result of a review.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The tasks to join, each with the most to deposit there.
    pub joins: Vec<(TaskId, Amount)>,
    /// The tasks to leave.
    pub leaves: BTreeSet<TaskId>,
    /// For each task that stays: the reviews in a row in which it was weak.
    pub weak: BTreeMap<TaskId, u32>,
    /// Why the others are not joined.
    pub refused: BTreeMap<TaskId, TaskRefusal>,
}

/// Plans joins and leaves. The best tasks are those with the most predicted florins for an hour of
/// training; of equal ones, those with the smaller id.
#[must_use]
pub fn plan(inputs: &PlanInputs) -> Plan {
    let mut open = inputs.open.clone();
    open.sort_by(|one, other| {
        other.per_hour.total_cmp(&one.per_hour).then(one.task.cmp(&other.task))
    });
    let least = florins(inputs.per_hour_min);
    let taken = inputs.own.values().filter(|own| !own.is_over).count();
    let mut places = inputs.tasks_max.saturating_sub(taken);
    let mut left = inputs.bond_left;
    let mut found = Plan::default();
    let mut best_without_place = None;
    for task in &open {
        match refusal(task, inputs, (least, places, left)) {
            None => {
                let bond = task.bond_wanted.min(left);
                found.joins.push((task.task, bond));
                places -= 1;
                left = left.minus(bond).unwrap_or(Amount::ZERO);
            }
            Some(why) => {
                if matches!(why, TaskRefusal::BetterTasks { .. }) && best_without_place.is_none() {
                    best_without_place = Some(task.per_hour);
                }
                found.refused.insert(task.task, why);
            }
        }
    }
    judge_own(inputs, least, best_without_place, &mut found);
    found
}

fn refusal(
    task: &OpenTask,
    inputs: &PlanInputs,
    (least, places, left): (f64, usize, Amount),
) -> Option<TaskRefusal> {
    if !task.per_hour.is_finite() || task.per_hour < least || task.per_hour <= 0.0 {
        let (per_hour, least) = (task.per_hour, inputs.per_hour_min);
        Some(TaskRefusal::PayTooLow { per_hour, least })
    } else if task.bond_least > left {
        Some(TaskRefusal::BondLimit { least: task.bond_least, left })
    } else if !inputs.is_open {
        Some(TaskRefusal::OutsideHours)
    } else if places == 0 {
        Some(TaskRefusal::BetterTasks { places: inputs.tasks_max })
    } else {
        None
    }
}

/// Counts the weak reviews of the own tasks. Only the worst of them gives its place to another.
fn judge_own(inputs: &PlanInputs, least: f64, rival: Option<f64>, found: &mut Plan) {
    let known = |own: &OwnTask| own.per_hour.filter(|_| !own.is_over);
    let worst = inputs
        .own
        .iter()
        .filter_map(|(task, own)| known(own).map(|per_hour| (per_hour, *task)))
        .min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    for (task, own) in &inputs.own {
        let Some(per_hour) = known(own) else {
            found.weak.insert(*task, own.weak);
            continue;
        };
        let is_low = per_hour < least * LEAVE_BELOW_PERCENT / PERCENT || per_hour <= 0.0;
        let is_worst = worst.is_some_and(|(_, worst)| worst == *task);
        let is_replaced = is_worst
            && rival.is_some_and(|rival| rival > per_hour * REPLACE_ABOVE_PERCENT / PERCENT);
        let weak = if is_low || is_replaced { own.weak + 1 } else { 0 };
        if weak >= WEAK_REVIEWS {
            found.leaves.insert(*task);
        } else {
            found.weak.insert(*task, weak);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(number: u8) -> TaskId {
        TaskId([number; 32])
    }

    fn fln(whole: u128) -> Amount {
        Amount::from_units(whole * 1_000_000_000_000_000_000)
    }

    fn task(number: u8, per_hour: f64) -> OpenTask {
        OpenTask { task: id(number), per_hour, bond_least: fln(1), bond_wanted: fln(4) }
    }

    fn inputs(open: Vec<OpenTask>) -> PlanInputs {
        PlanInputs {
            tasks_max: 2,
            per_hour_min: fln(1),
            bond_left: fln(6),
            is_open: true,
            own: BTreeMap::new(),
            open,
        }
    }

    fn own(per_hour: f64, weak: u32) -> OwnTask {
        OwnTask { per_hour: Some(per_hour), weak, is_over: false }
    }

    fn codes(found: &Plan) -> Vec<(TaskId, &str)> {
        found.refused.iter().map(|(task, why)| (*task, why.code())).collect()
    }

    #[test]
    fn the_best_tasks_are_joined_within_the_limits_of_bond_and_places() {
        let tasks = vec![task(1, 2.0), task(2, 9.0), task(3, 0.5), task(4, 5.0)];
        let found = plan(&inputs(tasks));
        assert_eq!(found.joins, [(id(2), fln(4)), (id(4), fln(2))]);
        assert_eq!(codes(&found), [(id(1), "BOND_LIMIT_TOO_LOW"), (id(3), "PAY_TOO_LOW")]);
        let found = plan(&PlanInputs {
            bond_left: fln(60),
            ..inputs(vec![task(1, 2.0), task(2, 9.0), task(4, 5.0)])
        });
        assert_eq!(codes(&found), [(id(1), "TASKS_MAX_REACHED")]);
        let closed = PlanInputs { is_open: false, ..inputs(vec![task(1, 2.0)]) };
        assert_eq!(codes(&plan(&closed)), [(id(1), "OUTSIDE_HOURS")]);
        let broken = vec![task(1, f64::NAN), task(2, f64::INFINITY), task(3, -1.0)];
        let free = PlanInputs { per_hour_min: Amount::ZERO, ..inputs(broken) };
        assert!(plan(&free).joins.is_empty());
    }

    #[test]
    fn a_task_is_left_only_after_three_weak_reviews_in_a_row() {
        let mut now = inputs(Vec::new());
        let mut review = |per_hour: f64| {
            let weak = now.own.get(&id(1)).map_or(0, |own| own.weak);
            now.own.insert(id(1), own(per_hour, weak));
            let found = plan(&now);
            if let Some(weak) = found.weak.get(&id(1)) {
                now.own.get_mut(&id(1)).unwrap().weak = *weak;
            }
            !found.leaves.is_empty()
        };
        // 0.9 is below the least pay and not below 80 % of it.
        for per_hour in [0.9, 0.1, 0.1, 0.9, 0.1, 0.1] {
            assert!(!review(per_hour), "{per_hour}");
        }
        assert!(review(0.1));
    }

    #[test]
    fn only_the_worst_task_gives_way_and_only_to_a_much_better_one() {
        let with = |rival: f64, weak: u32| {
            let own = BTreeMap::from([(id(1), own(4.0, weak)), (id(2), own(2.0, weak))]);
            plan(&PlanInputs { own, ..inputs(vec![task(9, rival)]) })
        };
        assert_eq!(with(2.9, 2).leaves, BTreeSet::new());
        assert_eq!(with(3.1, 2).leaves, BTreeSet::from([id(2)]));
        let once = with(30.0, 0);
        assert_eq!(once.weak, BTreeMap::from([(id(1), 0), (id(2), 1)]));
        assert_eq!(codes(&once), [(id(9), "TASKS_MAX_REACHED")]);
    }

    #[test]
    fn a_task_that_only_settles_takes_no_place_and_an_unknown_one_stays() {
        let over = OwnTask { per_hour: Some(0.0), weak: 2, is_over: true };
        let unknown = OwnTask { per_hour: None, weak: 2, is_over: false };
        let own = BTreeMap::from([(id(1), over), (id(2), unknown)]);
        let found = plan(&PlanInputs { own, ..inputs(vec![task(9, 3.0)]) });
        assert_eq!(found.joins.len(), 1);
        assert!(found.leaves.is_empty());
        assert_eq!(found.weak, BTreeMap::from([(id(1), 2), (id(2), 2)]));
    }
}
