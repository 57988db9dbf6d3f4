//! Listings of devices: opening them, their records, and the links of probes.

use florin_compute::{
    Listing, ListingOpening, ListingPolicy, ListingRecord, ListingRequest, ListingTerms,
    ListingView, ShownLinks, SignedListingAction,
};
use florin_protocol::{Digest, WalletSignature};

use super::{Client, ClientError, WAIT_MS_MAX};

fn unexpected(id: Digest, why: &dyn std::fmt::Display) -> ClientError {
    ClientError::UnexpectedContent { what: format!("listing {id}"), why: why.to_string() }
}

impl Client {
    /// The coordinator's requirements of listings.
    ///
    /// # Errors
    /// Those of any request.
    pub fn listing_policy(&self) -> Result<ListingPolicy, ClientError> {
        self.http.get("listings/policy", 0)
    }

    /// Opens a listing whose fees and stake are on the ledger. Idempotent: a second call returns the current view.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn open_listing(&self, terms: &ListingTerms) -> Result<ListingView, ClientError> {
        let request = ListingRequest { terms: terms.clone() };
        self.check_listing(self.http.post("listings", &request, 0)?.json()?, terms.id())
    }

    /// All listings that the coordinator remembers, the newest first.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] for a listing of another market; those of any request.
    pub fn listings(&self) -> Result<Vec<ListingView>, ClientError> {
        let views: Vec<ListingView> = self.http.get("listings", 0)?;
        let checked = views.into_iter().map(|view| {
            let id = view.listing.id();
            self.check_listing(view, id)
        });
        checked.collect()
    }

    /// A listing, once it has more than `after` records or after `wait_ms` (at most [`WAIT_MS_MAX`]).
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] if the listing does not have this id; those of any request.
    pub fn listing(
        &self,
        id: Digest,
        after: u32,
        wait_ms: u64,
    ) -> Result<ListingView, ClientError> {
        let wait_ms = wait_ms.min(WAIT_MS_MAX);
        let path = format!("listings/{id}?after={after}&wait_ms={wait_ms}");
        self.check_listing(self.http.get(&path, wait_ms)?, id)
    }

    /// Sends a message of a provider. Idempotent for an identical message.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn act_on_listing(&self, action: &SignedListingAction) -> Result<ListingView, ClientError> {
        let id = action.body.listing;
        self.check_listing(
            self.http.post(&format!("listings/{id}/actions"), action, 0)?.json()?,
            id,
        )
    }

    /// Shows the drawn links of a probe, with the signature of its provider's wallet. Idempotent.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn show_links(
        &self,
        id: Digest,
        signature: &WalletSignature,
        links: &ShownLinks,
    ) -> Result<(), ClientError> {
        let headers = [("links-signature", signature.to_string())];
        self.put_whole(&format!("listings/{id}/links"), &headers, &links.to_bytes())
    }

    /// A listing as it follows from its record, and the record. Moments, checks of links and measured leases are the
    /// coordinator's word; the records of the leases have what was measured.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] for a record that has another listing than the view; those of any request.
    pub fn recorded_listing(
        &self,
        view: &ListingView,
    ) -> Result<(Listing, Vec<ListingRecord>), ClientError> {
        let (id, opened) = (view.listing.id(), view.opened);
        let coordinator = self.coordinator.account;
        let terms = view.listing.terms().clone();
        let opening = ListingOpening { terms, coordinator, opened };
        let mut listing = Listing::open(&opening).map_err(|error| unexpected(id, &error))?;
        let mut all = Vec::new();
        while listing.length() < view.listing.length() {
            let path = format!("listings/{id}/records?after={}", listing.length());
            let records: Vec<ListingRecord> = self.http.get(&path, 0)?;
            if records.is_empty() {
                return Err(unexpected(id, &"its record is shorter than its view"));
            }
            let left = view.listing.length().saturating_sub(listing.length());
            for record in records.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                listing.apply(record).map_err(|error| unexpected(id, &error))?;
                all.push(*record);
            }
        }
        match listing == view.listing {
            true => Ok((listing, all)),
            false => Err(unexpected(id, &"its record has another listing than its view")),
        }
    }

    fn check_listing(&self, view: ListingView, id: Digest) -> Result<ListingView, ClientError> {
        let terms = view.listing.terms();
        if view.listing.id() != id || terms.id() != id {
            return Err(unexpected(id, &format!("the listing's id is {}", terms.id())));
        }
        match terms.market == self.coordinator.market {
            true => Ok(view),
            false => Err(unexpected(id, &"it is a listing of another market")),
        }
    }
}
