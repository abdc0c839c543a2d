//! The findings of the guard for flags that may change the output.

use crate::guard::{CheckedReplies, GuardVerdict};
use crate::store::{RankedConfiguration, Store, StoreError, Study};

/// The guard's findings on a study.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GuardFindings {
    /// The replies of the best configuration, of its launch that keeps least. `None` if it has the baseline's values of
    /// all flags that may change the output.
    pub winner: Option<CheckedReplies>,
    /// Trials that cannot win because their replies differ from the baseline's, in their order.
    pub excluded: Vec<(u32, CheckedReplies)>,
}

impl GuardFindings {
    pub(super) async fn read(
        store: &Store,
        study: &Study,
        winner: Option<&RankedConfiguration>,
    ) -> Result<Option<Self>, StoreError> {
        let mut of_winner: Option<CheckedReplies> = None;
        for number in winner.iter().flat_map(|ranked| &ranked.trials) {
            let Some(checked) = store.answers(study, *number).await?.filter(|checked| !checked.is_reference) else {
                continue;
            };
            let kept = |checked: &CheckedReplies| checked.relative_agreement().unwrap_or(0.0);
            if of_winner.as_ref().is_none_or(|known| kept(&checked) < kept(known)) {
                of_winner = Some(checked);
            }
        }
        let findings = Self { winner: of_winner, excluded: store.differing_replies(study).await? };
        Ok((findings.winner.is_some() || !findings.excluded.is_empty()).then_some(findings))
    }

    /// Returns a warning if the best configuration changes the replies, or if that is not known.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<String> {
        let winner = self.winner.as_ref()?;
        match winner.comparison.as_ref().map(|comparison| comparison.verdict) {
            Some(GuardVerdict::Agrees) => None,
            Some(GuardVerdict::Differs) => Some(format!("the best configuration changes the replies; {winner}")),
            Some(GuardVerdict::NotSettled) | None => {
                Some(format!("the best configuration may change the replies; {winner}"))
            }
        }
    }
}
