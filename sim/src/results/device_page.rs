//! The part of a report on the members' devices: their rounds, and the updates that arrive too late.

use std::fmt::Write as _;

use florin_charts::{
    self as charts, Axes, Axis, Point, Quantity, ScatterPoint, Unit, escape_html, scatter_plot,
    table_html,
};

use super::page::POINTS_MAX;
use super::{Results, format_number};
use crate::devices::{DeviceVerdict, StepMemoryVerdict};
use crate::outcome::{MemberOutcome, RoundOutcomeRow};
use crate::page;

/// The devices of a group's members in all seeds.
#[derive(Default)]
struct GroupDeviceCounts {
    members: u32,
    devices: u32,
    seconds: Vec<f64>,
    in_time: u32,
    late: u32,
    by_plan: u32,
    too_small: u32,
}

impl GroupDeviceCounts {
    fn count<'a>(members: impl Iterator<Item = &'a MemberOutcome>) -> Self {
        let mut all = Self::default();
        for round in members.filter_map(|member| member.devices) {
            all.members += 1;
            all.devices += round.times.devices;
            all.by_plan += u32::from(round.times.memory == StepMemoryVerdict::ByPlan);
            match round.verdict {
                DeviceVerdict::InTime => all.in_time += 1,
                DeviceVerdict::Late => all.late += 1,
                DeviceVerdict::TooSmall => all.too_small += 1,
            }
            if round.round_seconds.is_finite() {
                all.seconds.push(round.round_seconds);
            }
        }
        all.seconds.sort_by(f64::total_cmp);
        all
    }

    /// The median of the predicted rounds in seconds; `None` if no member holds a step.
    fn median(&self) -> Option<f64> {
        let last = self.seconds.len().checked_sub(1)?;
        Some(f64::midpoint(self.seconds[last / 2], self.seconds[last.div_ceil(2)]))
    }
}

impl Results {
    /// The section on devices; nothing for a scenario without them.
    pub(super) fn devices_section(&self, html: &mut String) {
        if !self.scenario.has_devices() {
            return;
        }
        let over = |of: &dyn Fn(&RoundOutcomeRow) -> f64| self.mean_per_round(of);
        let seconds = Quantity { name: "seconds", unit: Unit::Seconds };
        let duration = page::rounds_plot(
            "Duration of a round",
            seconds,
            &[("duration", over(&|row| row.duration_ms as f64 / 1e3))],
        );
        let missing = page::rounds_plot(
            "Selected without an update in time",
            Quantity { name: "accounts", unit: Unit::Number },
            &[
                ("too late", over(&|row| row.late as f64)),
                ("too little memory", over(&|row| row.too_small as f64)),
            ],
        );
        let deadline = self.scenario.task.train_s;
        let figures = [
            charts::figure_html(
                &self.pay_against_seconds(),
                &format!(
                    "Each point is a member in one seed: florins earned over the predicted seconds \
                     of its round. The deadline of the training is at {} seconds.",
                    format_number(deadline)
                ),
            ),
            charts::figure_html(
                &self.error_bar_plot("Late by group", "late"),
                "Updates that arrived after a deadline, per selection into a cohort.",
            ),
            charts::figure_html(&missing, "Accounts of the cohort without an update in time."),
            charts::figure_html(
                &duration,
                "Virtual seconds from the offer to the last update, or to the deadlines if an \
                 update is missing.",
            ),
        ];
        html.push_str(&charts::section("Devices", &figures));
        self.devices_table(html);
    }

    fn pay_against_seconds(&self) -> String {
        let groups: Vec<&str> = self.scenario.population.keys().map(String::as_str).collect();
        let members = self.outcomes.iter().flat_map(|played| &played.members);
        let dot = |member: &MemberOutcome| {
            let x = member.devices?.round_seconds;
            let at = Point { x, y: member.earned };
            x.is_finite().then_some(ScatterPoint { at, series: member.group })
        };
        let dots: Vec<ScatterPoint> = members.filter_map(dot).take(POINTS_MAX).collect();
        let seconds = Quantity { name: "seconds of a round", unit: Unit::Seconds };
        let earned = Quantity { name: "earned", unit: Unit::Florins };
        let axes = Axes {
            x: Axis::covering(seconds, dots.iter().map(|dot| dot.at.x)),
            y: Axis::covering(earned, dots.iter().map(|dot| dot.at.y)),
        };
        scatter_plot("Pay against the time of a round", &axes, &dots, &groups)
    }

    fn devices_table(&self, html: &mut String) {
        let heads = [
            "members",
            "devices of a member",
            "median seconds of a round",
            "in time",
            "late",
            "by a plan",
            "too little memory",
        ];
        let mut rows = "<tr><th>group</th>".to_owned();
        for head in heads {
            let _ = write!(rows, "<th class=\"n\">{head}</th>");
        }
        rows.push_str("</tr>");
        for (at, name) in self.scenario.population.keys().enumerate() {
            let members = self.outcomes.iter().flat_map(|played| &played.members);
            let all = GroupDeviceCounts::count(members.filter(|member| member.group == at));
            if all.members == 0 {
                continue;
            }
            let cells = [
                all.members.to_string(),
                format_number(f64::from(all.devices) / f64::from(all.members)),
                all.median().map_or_else(|| "–".to_owned(), format_number),
                all.in_time.to_string(),
                all.late.to_string(),
                all.by_plan.to_string(),
                all.too_small.to_string(),
            ];
            let _ = write!(rows, "<tr><td>{}</td>", escape_html(name));
            for cell in cells {
                let _ = write!(rows, "<td class=\"n\">{cell}</td>");
            }
            rows.push_str("</tr>");
        }
        let why = "Members of all seeds, by their honest work: in time or late by the predicted \
                   seconds, with all tensors in the memory or by a plan.";
        let _ = write!(
            html,
            "<section><h2>Devices by group</h2><p class=\"why\">{why}</p>{}</section>",
            table_html(&rows)
        );
    }
}
