//! The drawn links of a computed probe.

use florin_compute::{
    Factor, ProbeLink, ShownFactor, ShownLink, ShownLinks, ShownState, drawn_links, step,
};
use florin_learning::field_products::FieldProducts;
use florin_protocol::Digest;

use super::{ComputedProbe, Matrices, SAVED_EACH, filled_state};

impl ComputedProbe {
    /// The links that a secret draws, in their order. Read states between saved ones are computed again.
    #[must_use]
    pub fn show(&self, secret: Digest, products: &mut dyn FieldProducts) -> Option<ShownLinks> {
        let drawn = drawn_links(&self.shape, secret, self.root());
        let links: Option<Vec<_>> =
            drawn.into_iter().map(|link| self.show_link(link, products)).collect();
        Some(ShownLinks { links: links? })
    }

    fn show_link(&self, link: ProbeLink, products: &mut dyn FieldProducts) -> Option<ShownLink> {
        let before = link.position.checked_sub(1).map(|position| ProbeLink { position, ..link });
        let leaf = match before {
            Some(before) => Some(self.leaf(before)?),
            None => None,
        };
        let factor = match step(self.seed, &self.shape, link, leaf).factor {
            Factor::Pool(_) => None,
            Factor::Filled(read) => Some(self.show_factor(read, products)?),
        };
        let before = match before {
            Some(before) => Some(self.show_state(before, products)?),
            None => None,
        };
        Some(ShownLink { before, factor, after: self.show_state(link, products)? })
    }

    fn show_factor(
        &self,
        link: ProbeLink,
        products: &mut dyn FieldProducts,
    ) -> Option<ShownFactor> {
        let before = match link.position.checked_sub(1) {
            Some(position) => Some(self.show_state(ProbeLink { position, ..link }, products)?),
            None => None,
        };
        Some(ShownFactor { state: self.show_state(link, products)?, before })
    }

    fn show_state(&self, link: ProbeLink, products: &mut dyn FieldProducts) -> Option<ShownState> {
        let proof = self.tree.proof(self.shape.leaf_index(link))?;
        Some(ShownState { state: self.state(link, products)?, proof })
    }

    fn leaf(&self, link: ProbeLink) -> Option<Digest> {
        self.chains.get(link.device as usize)?.leaves.get(link.position as usize).copied()
    }

    /// The state behind a link.
    fn state(&self, link: ProbeLink, products: &mut dyn FieldProducts) -> Option<Vec<u8>> {
        let Some(read) = link.position.checked_sub(self.shape.filled) else {
            return filled_state(&self.chains, link).map(<[u8]>::to_vec);
        };
        let saved = read as usize / SAVED_EACH;
        let mut state = self.chains.get(link.device as usize)?.saved.get(saved)?.clone();
        let matrices = Matrices { shape: &self.shape, seed: self.seed, pool: &self.pool };
        let first = self.shape.filled + (saved * SAVED_EACH) as u32;
        for position in first..link.position {
            let next = ProbeLink { position: position + 1, ..link };
            let leaf = self.leaf(ProbeLink { position, ..link });
            let filled = |read: ProbeLink| filled_state(&self.chains, read);
            state = matrices.next(products, next, (&state, leaf), filled)?;
        }
        Some(state)
    }
}
