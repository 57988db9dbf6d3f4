//! REFL: A. M. Abdelmoniem, A. N. Sahu, M. Canini and S. A. Fahmy, "REFL: Resource-Efficient
//! Federated Learning", EuroSys 2023: of the members that are online, those that are least likely to
//! be online one expected round later come first.

use rand_chacha::ChaCha8Rng;

use super::SelectableMember;
use crate::random::shuffle;

pub(super) fn select(
    members: &[SelectableMember],
    places: usize,
    rng: &mut ChaCha8Rng,
) -> Vec<usize> {
    let mut all: Vec<&SelectableMember> = members.iter().collect();
    shuffle(rng, &mut all);
    all.sort_by(|one, other| one.later.total_cmp(&other.later));
    all.into_iter().take(places).map(|member| member.number).collect()
}
