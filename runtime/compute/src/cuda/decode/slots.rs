//! The calls of several slots as ops of the decode kernel. A slot is a token of one session; its calls are those of a step.

use crate::cuda::schedule::{Accesses, Queued};

/// A call that becomes one op, or one op per slot, which the same blocks run in order.
pub(crate) struct SlotCalls<'a> {
    /// The call of each slot.
    calls: Vec<&'a Queued>,
    /// The first of these slots.
    first: usize,
    /// Whether other slots have the same call.
    is_shared: bool,
}

impl<'a> SlotCalls<'a> {
    /// Groups the calls of each slot, which are the same kernels in the same order. A product reads the tokens of all slots. If no block
    /// reads what another block wrote for an earlier token, the slots follow one another without a barrier; otherwise one slot's calls of
    /// an op end before the next slot's begin.
    pub fn group(slots: &[&'a [Queued]]) -> Vec<Self> {
        let all = |index: usize| SlotCalls {
            calls: slots.iter().map(|calls| &calls[index]).collect(),
            first: 0,
            is_shared: slots.len() > 1,
        };
        if slots.len() == 1 {
            return (0..slots[0].len()).map(all).collect();
        }
        let mut grouped = Vec::new();
        let calls: Vec<(usize, &Queued)> = slots[0].iter().enumerate().collect();
        for group in calls
            .chunk_by(|(_, a), (_, b)| a.gemv().is_none() && b.gemv().is_none() && a.op() == b.op())
        {
            let indices = group.iter().map(|&(index, _)| index);
            let is_local =
                |&(_, queued): &(usize, &Queued)| queued.gemv().is_some() || queued.block_local;
            if group.iter().all(is_local) {
                grouped.extend(indices.map(all));
                continue;
            }
            for (slot, calls) in slots.iter().enumerate() {
                grouped.extend(indices.clone().map(|index| SlotCalls {
                    calls: vec![&calls[index]],
                    first: slot,
                    is_shared: true,
                }));
            }
        }
        grouped
    }

    /// Returns the call of the first slot.
    pub fn queued(&self) -> &'a Queued {
        self.calls[0]
    }

    /// Returns the memory that the calls access. Where slots share a call, this includes the state, which no other call of a step accesses.
    pub fn accesses(&self) -> Option<Accesses> {
        let mut all = Accesses::default();
        for queued in &self.calls {
            let of = queued.of.as_ref().map(|of| of.accesses.clone());
            let of = of.filter(|_| self.is_shared && queued.gemv().is_none());
            for accesses in [Some(queued.accesses()?), of].into_iter().flatten() {
                all.reads.extend(accesses.reads);
                all.writes.extend(accesses.writes);
            }
        }
        Some(all)
    }

    /// Returns the ops in order, each with its slot and the calls whose parameters its record has. A product finds the rows of the other
    /// slots by their stride, a recurrence has the parameters of all slots.
    pub fn ops(self) -> Vec<(usize, Vec<&'a Queued>)> {
        if self.queued().recurrence().is_some() {
            return vec![(self.first, self.calls)];
        }
        let ops = match self.queued().gemv() {
            Some(_) => 1,
            None => self.calls.len(),
        };
        let calls = self.calls.into_iter().take(ops).map(|queued| vec![queued]);
        (self.first..).zip(calls).collect()
    }
}
