//! Which arbiters may put a deposit at risk.

use florin_protocol::{Address, TaskSpec};

/// The arbiters that a participant or provider accepts. An arbiter can cancel settlements and slash
/// deposits, so none is accepted by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArbiterPolicy {
    /// Accounts that are accepted by name (`--arbiter`).
    pub accepted: Vec<Address>,
    /// Whether a task's coordinator is accepted as its arbiter (`--trust-coordinator`).
    pub trusts_coordinator: bool,
}

/// Whether the policy accepts the arbiter of a task.
#[must_use]
pub fn arbiter_acceptable(policy: &ArbiterPolicy, spec: &TaskSpec) -> bool {
    policy.accepted.contains(&spec.arbiter)
        || policy.trusts_coordinator && spec.arbiter == spec.coordinator
}

/// Why an arbiter is not accepted, and the option that accepts it.
pub(crate) fn describe_unaccepted(spec: &TaskSpec) -> String {
    let arbiter = spec.arbiter;
    match arbiter == spec.coordinator {
        true => format!(
            "its arbiter is its coordinator {arbiter}: one account decides the pay and can take \
             deposits. If you trust it, add --trust-coordinator"
        ),
        false => format!(
            "its arbiter {arbiter} can cancel settlements and take deposits. If you trust it, add \
             --arbiter {arbiter}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn only_a_named_arbiter_is_accepted() {
        let spec = testing::spec();
        let by_coordinator = TaskSpec { arbiter: spec.coordinator, ..spec.clone() };
        let named = |account| ArbiterPolicy { accepted: vec![account], trusts_coordinator: false };
        let trusting = ArbiterPolicy { accepted: Vec::new(), trusts_coordinator: true };
        for (policy, task, accepted) in [
            (&ArbiterPolicy::default(), &spec, false),
            (&ArbiterPolicy::default(), &by_coordinator, false),
            (&named(spec.buyer), &spec, false),
            (&named(spec.arbiter), &spec, true),
            (&named(spec.arbiter), &by_coordinator, false),
            (&named(spec.coordinator), &by_coordinator, true),
            (&trusting, &spec, false),
            (&trusting, &by_coordinator, true),
        ] {
            assert_eq!(arbiter_acceptable(policy, task), accepted, "{policy:?} {}", task.arbiter);
        }
        assert!(describe_unaccepted(&spec).contains(&format!("--arbiter {}", spec.arbiter)));
        assert!(describe_unaccepted(&by_coordinator).contains("--trust-coordinator"));
    }
}
