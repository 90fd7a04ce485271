//! When a generation drafts: a refused draft costs as much as a few steps, so pauses follow refused drafts.

/// Counts the plain steps after refused drafts. The pause grows with each refused draft.
#[derive(Default)]
pub(super) struct Pause {
    /// Consecutive drafts of which less than half was accepted.
    refused: u32,
    /// Plain steps left in the pause.
    left: u32,
}

impl Pause {
    /// Consecutive refused drafts that do not cause a pause yet.
    const PATIENCE: u32 = 1;
    const SHORTEST: u32 = 16;
    const LONGEST: u32 = 256;

    /// Counts a step. Returns whether it must be a plain one.
    pub fn step(&mut self) -> bool {
        let pauses = self.left > 0;
        self.left = self.left.saturating_sub(1);
        pauses
    }

    /// Records a draft: single steps would have chosen `accepted` of its `drafted` tokens.
    pub fn end_draft(&mut self, drafted: u64, accepted: u64) {
        if drafted == 0 {
            return;
        }
        if 2 * accepted >= drafted {
            return *self = Pause::default();
        }
        if self.refused >= Self::PATIENCE {
            let doublings = (self.refused - Self::PATIENCE).min(16);
            self.left = (Self::SHORTEST << doublings).min(Self::LONGEST);
        }
        self.refused = self.refused.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::Pause;

    /// Refused drafts cause pauses that grow up to a bound; a draft of which half was accepted resets them.
    #[test]
    fn refused_drafts_become_rare() {
        let mut pause = Pause::default();
        let mut plain_steps = |drafted, accepted| {
            pause.end_draft(drafted, accepted);
            (0..).take_while(|_| pause.step()).count()
        };
        assert_eq!(plain_steps(4, 1), 0);
        let pauses = [plain_steps(4, 1), plain_steps(2, 0), plain_steps(1, 0)];
        assert_eq!(pauses, [16, 32, 64]);
        for _ in 0..100 {
            assert!(plain_steps(3, 0) <= 256);
        }
        assert_eq!(plain_steps(0, 0), 0);
        assert_eq!(plain_steps(4, 2), 0);
        assert_eq!(plain_steps(4, 0), 0);
        assert_eq!(plain_steps(4, 0), 16);
    }
}
