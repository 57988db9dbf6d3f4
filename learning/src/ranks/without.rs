//! Ranks in a build without c10d: there are none.

use std::ops::ControlFlow;

use super::{RankError, RankErrorCode, RankFacts, RankNotify, RankPlace, RankSettings};
use crate::data::Dataset;
use crate::engine::TrainError;
use crate::model::ModelSpec;
use crate::select::EngineKind;

/// This process among the ranks of a training. In this build there is none.
#[derive(Debug)]
pub enum Ranks {}

impl Ranks {
    /// Refuses: this build has no c10d.
    ///
    /// # Errors
    /// [`RankErrorCode::Unavailable`].
    pub fn join(_: RankSettings, _: &RankFacts, _: RankNotify) -> Result<Self, RankError> {
        let why = "this program was built without ranks: enable the feature `distributed`, or start \
                   one process";
        Err(RankError::new(RankErrorCode::Unavailable, why))
    }

    /// The place of this process.
    #[must_use]
    pub fn place(&self) -> &RankPlace {
        match *self {}
    }

    /// Serves trainings.
    ///
    /// # Errors
    /// None: there is no such value.
    pub fn serve(
        &mut self,
        _: EngineKind,
        _: &ModelSpec,
        _: Option<&Dataset>,
        _: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        match *self {}
    }
}
