//! The findings of an experiment in words: what the members of each group earn, per row against the
//! honest members, and whether their deviation pays.

use super::{Results, SelectorRounds, format_number};
use crate::measure::{ConfidenceInterval, MeasureSummary, earned_per_row, ratio};
use crate::mechanism::Mechanism;
use crate::outcome::{MemberOutcome, SimulationOutcome};

/// The values of a fraction.
const FRACTION: (f64, f64) = (0.0, 1.0);

/// A finding about one group, or about the whole market.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The group, or `market`.
    pub subject: String,
    /// The finding, in whole sentences.
    pub text: String,
}

impl Results {
    /// One finding for each group, deviating groups first, and one for the market.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let groups = || self.scenario.population.iter().enumerate();
        let deviating = groups().filter(|(_, (_, group))| !group.strategy.is_honest());
        let honest = groups().filter(|(_, (_, group))| group.strategy.is_honest());
        let of_group = |(index, (name, _)): (usize, (&String, _))| Finding {
            subject: name.clone(),
            text: self.describe_group(index, name),
        };
        let market = Finding { subject: "market".to_owned(), text: self.describe_market() };
        deviating.chain(honest).map(of_group).chain([market]).collect()
    }

    fn describe_group(&self, index: usize, name: &str) -> String {
        let of = |measure: &str| self.measure(measure, Some(name)).map(|one| &one.interval);
        let mut text = of("gain").map(|gain| self.describe_gain(gain)).unwrap_or_default();
        let Some(earned) = of("earned") else { return text };
        let (verb, shown) = signed("earns", "loses", earned);
        text += &format!("A member {verb} {}{}", self.money(&shown), range(&shown));
        if let Some(per_row) = of("earned_per_row").filter(|_| earned.mean != 0.0) {
            let (_, shown) = signed("", "", per_row);
            text += &format!(", {} per row{}", format_number(shown.mean), range(&shown));
        }
        text += ". ";
        let share = self.share_of_honest(index).filter(|_| of("gain").is_some());
        if let Some(share) = share.filter(|share| share.mean > 0.0) {
            let of_honest = percent(&share, 0);
            text += &format!("Per row, that is {of_honest} of the earnings of an honest member. ");
        }
        text += &self.describe_devices(name);
        text.trim_end().to_owned()
    }

    /// The times of a group's devices; empty without devices.
    fn describe_devices(&self, name: &str) -> String {
        let of = |measure: &str| self.measure(measure, Some(name)).map(|one| &one.interval);
        let mut text = String::new();
        if let Some(small) = of("too_small").filter(|small| small.mean > 0.0) {
            let members = percent(&small.within(FRACTION), 0);
            text += &format!("A step fits into no device of {members} of the members. ");
        }
        if let Some(seconds) = of("round_seconds") {
            let (mean, bounds) = (format_number(seconds.mean), range(seconds));
            text += &format!("A round takes a member {mean} seconds{bounds}");
            let late =
                of("late").map(|late| percent(&late.within(FRACTION), 0)).unwrap_or_default();
            text += &format!(", and {late} of its selections end too late. ");
        }
        text
    }

    /// Whether a deviation pays: a gain whose confidence interval includes zero is not significant.
    fn describe_gain(&self, gain: &ConfidenceInterval) -> String {
        let (verb, shown) = signed("gains", "costs", gain);
        let amount = self.money(&shown);
        if gain.mean == 0.0 && gain.bounds.is_none_or(|ends| ends.low == ends.high) {
            return "Deviating changes nothing for a member. ".to_owned();
        }
        match gain.bounds {
            None => format!("Deviating {verb} a member {amount} in the only seed. "),
            Some(ends) if ends.low <= 0.0 && ends.high >= 0.0 => {
                let sign = if gain.mean > 0.0 { "" } else { "−" };
                format!(
                    "Deviating neither gains nor costs a member a significant amount: {sign}{} \
                     ({} to {}). ",
                    amount,
                    minus(ends.low),
                    minus(ends.high)
                )
            }
            Some(_) => format!("Deviating {verb} a member {amount}{}. ", range(&shown)),
        }
    }

    /// Earnings per row of the group relative to those of all honest members.
    fn share_of_honest(&self, index: usize) -> Option<ConfidenceInterval> {
        let per_seed = |chosen: &dyn Fn(&MemberOutcome) -> bool| -> Vec<f64> {
            let of = |played: &SimulationOutcome| {
                earned_per_row(played.members.iter().filter(|member| chosen(member)))
            };
            self.outcomes.iter().map(of).collect()
        };
        let honest = per_seed(&|member| member.honest);
        ratio(&per_seed(&|member| member.group == index), &honest)
    }

    fn describe_market(&self) -> String {
        let of =
            |measure: &str| self.measure(measure, None).map(|one: &MeasureSummary| one.interval);
        let mut text = String::new();
        if let Some(accuracy) = of("accuracy") {
            let right = percent(&accuracy.within(FRACTION), 1);
            text += &format!("The final model classifies {right} of the test rows correctly. ");
        }
        if let Some(spent) = of("spent") {
            text += &format!("The buyer pays {} for data{}", self.money(&spent), range(&spent));
        }
        if let Some(price) = of("spent_per_accuracy_point").filter(|price| price.mean > 0.0) {
            let point = format_number(price.mean);
            text += &format!(", {point} per percentage point of accuracy{}", range(&price));
        }
        text + "." + &self.describe_selector()
    }

    /// The rounds in which the scenario's selector could select no cohort; empty without any.
    fn describe_selector(&self) -> String {
        let Some(SelectorRounds { rounds, market_cohorts, .. }) =
            self.selector_rounds().filter(|rounds| rounds.market_cohorts > 0)
        else {
            return String::new();
        };
        format!(
            " In {market_cohorts} of {rounds} rounds the selector had fewer than cohort_min \
             members, and the market's cohort was asked."
        )
    }

    /// An amount with its unit.
    fn money(&self, interval: &ConfidenceInterval) -> String {
        let unit = match self.scenario.mechanism {
            Mechanism::Tokenised(_) => "tokens",
            _ => "florins",
        };
        if interval.mean == 0.0 {
            return "nothing".to_owned();
        }
        format!("{} {unit}", format_number(interval.mean))
    }
}

/// The verb for the sign of a mean, and the interval of its absolute value.
fn signed<'a>(
    positive: &'a str,
    negative: &'a str,
    interval: &ConfidenceInterval,
) -> (&'a str, ConfidenceInterval) {
    if interval.mean >= 0.0 { (positive, *interval) } else { (negative, interval.scaled(-1.0)) }
}

/// The bounds of an interval in brackets; nothing for a single seed or an interval without width.
fn range(interval: &ConfidenceInterval) -> String {
    let wide = interval.bounds.filter(|ends| ends.low < ends.high);
    let bounds = |low, high| format!(" ({} to {})", minus(low), minus(high));
    wide.map(|ends| bounds(ends.low, ends.high)).unwrap_or_default()
}

/// A fraction in per cent with its bounds.
fn percent(interval: &ConfidenceInterval, decimals: usize) -> String {
    let shown = |fraction: f64| format!("{:.decimals$}", 100.0 * fraction).replace('-', "−");
    let mean = shown(interval.mean);
    let wide = interval.bounds.filter(|ends| ends.low < ends.high);
    let bounds = |low, high| format!("{mean} % ({} to {} %)", shown(low), shown(high));
    wide.map_or_else(|| format!("{mean} %"), |ends| bounds(ends.low, ends.high))
}

/// A number with a typographic minus sign.
fn minus(value: f64) -> String {
    format_number(value).replace('-', "−")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::measure::measure_seed;
    use crate::scenario::Scenario;

    const SCENARIO: &str = "name = 'a'\nquestion = 'Does copying pay?'\nrounds = 1\n\
        [population.copier]\ncount = 1\nstrategy = { kind = 'copy', noise = 0.1 }\n\
        [population.honest]\ncount = 1";

    /// A market in which the copier with 10 rows and the honest member with 20 rows earn this much.
    fn outcome(seed: u64, copier: f64, honest: f64) -> SimulationOutcome {
        let member = |group, rows, earned| MemberOutcome {
            earned,
            ..MemberOutcome::initial(group, group == 1, rows)
        };
        SimulationOutcome {
            seed,
            groups: vec!["copier".to_owned(), "honest".to_owned()],
            members: vec![member(0, 10, copier), member(1, 20, honest)],
            rounds: Vec::new(),
            timelines: Vec::new(),
            accuracy_before: 0.5,
            backdoor: 0.0,
            returned: 0.0,
            balanced: true,
            market_cohorts: 0,
        }
    }

    /// The copier's findings, when it earns `copying` in each seed, and `working` if it is honest.
    fn findings(copying: &[f64], working: &[f64]) -> Vec<Finding> {
        results(copying, working).findings()
    }

    fn results(copying: &[f64], working: &[f64]) -> Results {
        let scenario = Scenario::read(SCENARIO, &[]).unwrap();
        let (mut played, mut values) = (Vec::new(), Vec::new());
        for ((seed, copying), working) in (1..).zip(copying).zip(working) {
            let game = outcome(seed, *copying, 40.0);
            let honest = BTreeMap::from([(0, outcome(seed, *working, 40.0))]);
            values.push(measure_seed(&game, &honest));
            played.push(game);
        }
        Results::from_outcomes(&scenario, played, values, Vec::new())
    }

    fn copier(copying: &[f64], working: &[f64]) -> String {
        findings(copying, working)[0].text.clone()
    }

    #[test]
    fn a_finding_tells_whether_deviating_pays_with_its_interval() {
        // Gains of −8 and −12 have the mean −10 and the interval −10 ± 12.7 · 2: not significant.
        let text = copier(&[6.0, 4.0], &[14.0, 16.0]);
        assert!(text.contains("nor costs a member a significant amount: −10.0 florins (−35.4 to"));
        let text = copier(&[5.0, 5.0], &[15.0, 15.0]);
        assert_eq!(
            text,
            "Deviating costs a member 10.0 florins. A member earns 5.00 florins, 0.500 per row. \
             Per row, that is 25 % of the earnings of an honest member."
        );
        assert!(copier(&[25.0, 25.1], &[15.0, 15.0]).starts_with("Deviating gains a member 10.1"));
        assert!(
            copier(&[9.0; 2], &[9.0; 2]).starts_with("Deviating changes nothing for a member.")
        );
        assert!(copier(&[9.0], &[4.0]).contains("gains a member 5.00 florins in the only seed."));
        let text = copier(&[0.0, 0.0], &[15.0, 15.0]);
        assert!(text.ends_with("15.0 florins. A member earns nothing."), "{text}");
        let text = copier(&[-2.0, -2.0], &[15.0, 15.0]);
        assert!(text.ends_with("A member loses 2.00 florins, 0.200 per row."), "{text}");
    }

    #[test]
    fn deviating_groups_precede_honest_ones_and_the_market() {
        let all = findings(&[5.0, 5.0], &[15.0, 15.0]);
        let subjects: Vec<&str> = all.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(subjects, ["copier", "honest", "market"]);
        assert_eq!(all[1].text, "A member earns 40.0 florins, 2.00 per row.");
        assert!(all[2].text.starts_with("The final model classifies 50.0 % of the test rows"));
    }

    #[test]
    fn the_page_shows_the_findings_before_the_plots() {
        let program = crate::results::Program { version: "1", commit: "0123456" };
        let page = results(&[5.0, 5.0], &[15.0, 15.0]).to_html(&program);
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing"));
        assert!(at("<b>copier</b> Deviating costs a member 10.0 florins.") < at("<svg"));
        assert!(at("that is 25\u{a0}% of the earnings") < at("<svg"));
    }

    #[test]
    fn the_interval_of_an_accuracy_is_from_nothing_to_a_hundred_per_cent() {
        let interval = crate::measure::confidence_interval(&[0.8, 1.0]);
        assert_eq!(percent(&interval.within(FRACTION), 1), "90.0 % (0.0 to 100.0 %)");
    }
}
