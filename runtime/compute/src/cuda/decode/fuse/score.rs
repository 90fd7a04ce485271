//! The choice of retained tokens does not store the token's score where the router has stored it.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{Outcome, Site};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{Node, Rows};

pub(super) fn rewrite(site: &mut Site) -> Outcome {
    let Node::Attend(attention) = &mut site.node.node else {
        return Outcome::Other;
    };
    let Some(score) = &attention.stored_score else {
        return Outcome::Other;
    };
    let accesses = site.before.iter().filter_map(|node| node.accesses.as_ref());
    let mut written = accesses.flat_map(|accesses| &accesses.writes);
    if !written.any(|written: &Range<Address>| written == score) {
        return Outcome::Refused("no router stored it");
    }
    if let Some(retained) = &mut attention.retained {
        retained.router = Rows::zeroed();
    }
    if let Some(accesses) = &mut site.node.accesses {
        accesses.reads.clear();
        accesses.writes.retain(|written| written != score);
    }
    attention.stored_score = None;
    Outcome::Reduced
}

#[cfg(test)]
mod tests {
    use super::super::merge;
    use super::super::tests::{ROWS, queued, rows};
    use super::*;
    use crate::cuda::schedule::{Accesses, Attended, Attention, Retained};

    #[test]
    fn a_score_is_stored_once() {
        let [q, k] = ROWS;
        for (written, left) in [(q, 0), (k, q.width)] {
            let mut score = queued("score", 0, Node::Waits);
            score.accesses = Some(Accesses {
                reads: vec![k.bytes()],
                writes: vec![written.bytes()],
            });
            let mut attention = Attention::new(Attended::zeroed());
            attention.retained = Some(Retained {
                router: rows(16),
                ..Retained::zeroed()
            });
            attention.stored_score = Some(q.bytes());
            let retain = queued("retain", 1, Node::Attend(Box::new(attention)));
            let merged = merge(vec![score, retain], |_| true);
            let Node::Attend(attention) = &merged[1].node else {
                panic!("attention")
            };
            let router = attention.retained.map(|retained| retained.router.width);
            assert_eq!(router, Some(left));
        }
    }
}
