//! Decides which ops of the decode kernel publish their outputs in mailboxes, value by value, so that the next op needs no grid barrier:
//! `mailbox.cu`.

use crate::abi::device_enum;
use crate::cuda::driver::Address;
use crate::cuda::schedule::{Epilogue, Gemv, Node, Queued, Recurrence, Rows};

device_enum! {
    /// The mailboxes that an op has, as bits of a template argument of its function.
    #[derive(Clone, Copy)]
    pub(super) enum MailboxBit("MAILBOX_") {
        Input = 1,
        Added = 2,
        Gates = 4,
        Output = 8,
        Sum = 16,
    }
}

/// The mailbox of an op's output, or the part of it from some column on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailbox {
    offset: usize,
    /// The op that publishes in the mailbox.
    op: usize,
}

impl Mailbox {
    /// Returns the mailbox's address; `memory` is the address of the first mailbox.
    pub fn in_memory(self, memory: Address) -> Address {
        memory + (self.offset * size_of::<f32>()) as u64
    }

    /// Returns the part from a column on.
    fn column(self, column: usize) -> Self {
        Mailbox {
            offset: self.offset + column,
            ..self
        }
    }
}

/// How an op can use mailboxes.
#[derive(Clone, Copy)]
pub(crate) enum MailboxRole<'a> {
    Gemv(&'a Gemv),
    Recurrence(&'a Recurrence),
    /// The op uses no mailbox: a grid barrier comes before and after it.
    Barrier,
}

impl<'a> MailboxRole<'a> {
    /// Returns the role of a call.
    pub fn of(queued: &'a Queued) -> Self {
        match &queued.node {
            Node::Gemv(gemv) => MailboxRole::Gemv(gemv),
            Node::RecurStep(recurrence) => MailboxRole::Recurrence(recurrence),
            _ => MailboxRole::Barrier,
        }
    }

    /// Returns the columns that the op can publish.
    fn output(&self) -> Option<Rows> {
        match self {
            MailboxRole::Gemv(gemv) => Some(gemv.output),
            MailboxRole::Recurrence(recurrence) => Some(recurrence.output),
            MailboxRole::Barrier => None,
        }
    }

    fn adds(&self) -> bool {
        matches!(self, MailboxRole::Gemv(gemv) if gemv.epilogue == Epilogue::Add)
    }

    /// Returns the index of the first of these columns in the output, if the op writes all of them.
    fn first_column(&self, columns: Rows) -> Option<usize> {
        match self {
            MailboxRole::Gemv(gemv) => Some(gemv.columns(columns)?.start),
            MailboxRole::Recurrence(recurrence) => {
                let first = recurrence.output.first;
                let inside = contains(recurrence.output, columns);
                inside.then(|| (columns.first - first) as usize / size_of::<f32>())
            }
            MailboxRole::Barrier => None,
        }
    }
}

/// The mailboxes of an op.
#[derive(Clone, Default)]
pub struct Mailboxes {
    /// A GEMV's input columns.
    pub input: Option<Mailbox>,
    /// Columns that the prologue adds, and columns that it gates by.
    pub added: Option<Mailbox>,
    pub gates: Option<Mailbox>,
    /// All inputs of a recurrence; empty if they do not come from mailboxes.
    pub inputs: Vec<Option<Mailbox>>,
    /// The whole output.
    pub output: Option<Mailbox>,
    /// The earlier output that this one is added to.
    pub sum: Option<Mailbox>,
    /// Whether the output is stored in its buffer too.
    pub stores: bool,
}

impl Mailboxes {
    /// Returns the ops whose mailboxes this op reads.
    pub fn sources(&self) -> impl Iterator<Item = usize> {
        let alone = [self.input, self.added, self.gates, self.sum];
        let mailboxes = alone.into_iter().chain(self.inputs.iter().copied());
        mailboxes.flatten().map(|mailbox| mailbox.op)
    }

    /// Returns the template argument `mailboxes`.
    pub fn bits(&self) -> u32 {
        let has_input = self.input.is_some() || !self.inputs.is_empty();
        let bits = [
            (has_input, MailboxBit::Input),
            (self.added.is_some(), MailboxBit::Added),
            (self.gates.is_some(), MailboxBit::Gates),
            (self.output.is_some(), MailboxBit::Output),
            (self.sum.is_some(), MailboxBit::Sum),
        ];
        let bit = |(has, bit)| if has { bit as u32 } else { 0 };
        bits.map(bit).iter().sum()
    }
}

/// An op of a run whose output is in a mailbox.
struct Member<'a> {
    link: MailboxRole<'a>,
    output: Rows,
    mailbox: Mailbox,
    /// Whether the next op reads the whole output in every block.
    whole: bool,
}

impl Member<'_> {
    fn mailbox_of(&self, columns: Rows) -> Option<Mailbox> {
        Some(self.mailbox.column(self.link.first_column(columns)?))
    }
}

/// Assigns mailboxes to all ops; returns them and the number of floats of one buffer.
///
/// A run of ops has no grid barrier inside: each op reads the output of the previous one, and all but the last publish. Everything else
/// that the ops read is in mailboxes of the run, was complete before the run, or is an output of the run that every block has read. Where
/// two ops of a run write the same columns, nothing reads the earlier values from their buffer, and only the last op stores its values.
/// Each op of a token has its own mailbox.
pub(crate) fn assign_mailboxes(ops: &[MailboxRole<'_>]) -> (Vec<Mailboxes>, usize) {
    let alone = Mailboxes {
        stores: true,
        ..Mailboxes::default()
    };
    let mut all = vec![alone; ops.len()];
    let mut run: Vec<Member> = Vec::new();
    let mut room = 0;
    for (index, &link) in ops.iter().enumerate() {
        let Some(output) = link.output() else {
            run.clear();
            continue;
        };
        for member in run.iter().filter(|member| member.output.overlaps(output)) {
            // The earlier store might land after this op's store.
            all[member.mailbox.op].stores = false;
            if link.adds() {
                all[index].sum = Some(member.mailbox);
            }
        }
        let mut member = Member {
            link,
            output,
            mailbox: Mailbox {
                offset: room,
                op: index,
            },
            whole: false,
        };
        let next = ops.get(index + 1).copied();
        let connected = next.and_then(|next| connect(&mut member, next, &run));
        let Some(connected) = connected else {
            run.clear();
            continue;
        };
        all[index].output = Some(member.mailbox);
        all[index + 1] = connected;
        // Mailboxes occupy whole cache lines.
        room += (output.width as usize).next_multiple_of(32);
        run.push(member);
    }
    (all, room)
}

/// Returns the mailboxes from which `next` reads outputs of `run` and `last`, or `None` if `next` needs a grid barrier.
fn connect(last: &mut Member, next: MailboxRole<'_>, run: &[Member]) -> Option<Mailboxes> {
    let mut mailboxes = Mailboxes {
        stores: true,
        ..Mailboxes::default()
    };
    if let MailboxRole::Gemv(gemv) = next {
        last.whole = gemv.input.is_some_and(|input| contains(input, last.output));
    }
    let last = &*last;
    let members = || run.iter().chain([last]);
    let latest = |rows: Rows| members().rfind(|member| member.output.overlaps(rows));
    match next {
        MailboxRole::Gemv(gemv) => {
            mailboxes.input = Some(last.mailbox_of(gemv.input?)?);
            let mailbox = |columns: Option<Rows>| match columns {
                Some(columns) => latest(columns)
                    .map_or(Some(None), |member| Some(Some(member.mailbox_of(columns)?))),
                None => Some(None),
            };
            mailboxes.added = mailbox(gemv.added)?;
            mailboxes.gates = mailbox(gemv.gates)?;
        }
        MailboxRole::Recurrence(recurrence) => {
            let mailbox = |rows: &Option<Rows>| match *rows {
                Some(rows) => Some(Some(latest(rows)?.mailbox_of(rows)?)),
                None => Some(None),
            };
            mailboxes.inputs = recurrence
                .inputs
                .iter()
                .map(mailbox)
                .collect::<Option<_>>()?;
            let of_last = |mailbox: &Option<Mailbox>| {
                mailbox.is_some_and(|mailbox| mailbox.op == last.mailbox.op)
            };
            if !mailboxes.inputs.iter().any(of_last) {
                return None;
            }
        }
        MailboxRole::Barrier => return None,
    }
    // Loads are aligned to 16 bytes. Every block must have read an output before it is added to.
    let output = next.output()?;
    let fits = |member: &Member| {
        if member.output.overlaps(output) && next.adds() {
            member.whole && member.output == output
        } else {
            true
        }
    };
    let aligned = last.output.first.is_multiple_of(16);
    (aligned && members().all(fits)).then_some(mailboxes)
}

fn contains(whole: Rows, part: Rows) -> bool {
    let (whole, part) = (whole.bytes(), part.bytes());
    whole.start <= part.start && part.end <= whole.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::schedule::{RecurStep, STEP_INPUTS, StreamedMatrix};
    use crate::functions::Activation;
    use bytemuck::Zeroable;

    fn rows(first: Address, width: usize) -> Rows {
        Rows {
            first,
            stride: width as i32,
            width: width as i32,
        }
    }

    fn gemv(epilogue: Epilogue, input: Option<Rows>, output: Rows) -> Gemv {
        let matrix = StreamedMatrix::for_shape(output.width as usize, 64);
        let twins = if matches!(epilogue, Epilogue::Gated(_)) {
            2
        } else {
            1
        };
        Gemv {
            epilogue,
            weights: vec![matrix; twins],
            input,
            added: None,
            gates: None,
            has_odd_norm: false,
            output,
            row_ops: None,
        }
    }

    const X: Address = 0x1000;
    const INNER: Address = 0x8000;

    /// A mixer's output, a gated unit, and the next layer's first GEMV, which overwrites the unit's inner columns.
    fn block() -> [Gemv; 4] {
        [
            gemv(Epilogue::Add, None, rows(X, 64)),
            gemv(
                Epilogue::Gated(Activation::Silu),
                Some(rows(X, 64)),
                rows(INNER, 128),
            ),
            gemv(Epilogue::Add, Some(rows(INNER, 128)), rows(X, 64)),
            gemv(Epilogue::Store, Some(rows(X, 64)), rows(INNER, 400)),
        ]
    }

    #[test]
    fn products_that_follow_one_another_pass_their_outputs() {
        let gemvs = block();
        let links = gemvs.iter().map(MailboxRole::Gemv);
        let ops: Vec<_> = links.chain([MailboxRole::Barrier]).collect();
        let (mailboxes, room) = assign_mailboxes(&ops);
        let outputs: Vec<_> = mailboxes.iter().map(|mailboxes| mailboxes.output).collect();
        let mailbox = |offset, op| Some(Mailbox { offset, op });
        let expected = [mailbox(0, 0), mailbox(64, 1), mailbox(192, 2), None, None];
        assert_eq!(outputs, expected);
        assert_eq!(room, 256);
        for (index, mailboxes) in mailboxes.iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| outputs[before]);
            assert_eq!(mailboxes.input, before, "op {index}");
            assert_eq!(mailboxes.sum, if index == 2 { outputs[0] } else { None });
            // The first sum and the inner columns are overwritten before any barrier.
            assert_eq!(mailboxes.stores, index > 1, "op {index}");
        }
    }

    #[test]
    fn a_barrier_waits_and_is_waited_for() {
        let gemvs = block();
        let [first, second, third, fourth] = gemvs.each_ref();
        let ops = [
            MailboxRole::Gemv(first),
            MailboxRole::Barrier,
            MailboxRole::Gemv(second),
            MailboxRole::Gemv(third),
            MailboxRole::Barrier,
            MailboxRole::Gemv(fourth),
        ];
        let (mailboxes, _) = assign_mailboxes(&ops);
        for (index, mailboxes) in mailboxes.iter().enumerate() {
            assert_eq!(mailboxes.output.is_some(), index == 2, "op {index}");
            assert_eq!(mailboxes.input.is_some(), index == 3, "op {index}");
            assert_eq!(mailboxes.sum, None, "op {index}");
            assert!(mailboxes.stores, "op {index}");
        }
    }

    /// The columns of a recurrence's output.
    const HEADS: Address = 0x10000;

    fn recurrence(inputs: [Option<Rows>; 3]) -> Recurrence {
        let mut all = [None; STEP_INPUTS];
        all[..inputs.len()].copy_from_slice(&inputs);
        Recurrence {
            step: RecurStep::zeroed(),
            inputs: all,
            output: rows(HEADS, 64),
            blocks: 1,
            can_normalize: false,
        }
    }

    #[test]
    fn a_recurrence_takes_what_products_pass_and_passes_its_outputs() {
        let first = gemv(Epilogue::Store, None, rows(INNER, 192));
        let recurrence = recurrence([Some(rows(INNER, 64)), None, Some(rows(INNER + 256, 64))]);
        let mut last = gemv(Epilogue::Add, Some(rows(HEADS, 64)), rows(X, 64));
        (last.added, last.gates) = (Some(rows(INNER, 64)), Some(rows(INNER + 512, 64)));
        let ops = [
            MailboxRole::Gemv(&first),
            MailboxRole::Recurrence(&recurrence),
            MailboxRole::Gemv(&last),
        ];
        let (mailboxes, room) = assign_mailboxes(&ops);
        let mailbox = |offset, op| Some(Mailbox { offset, op });
        assert_eq!(mailboxes[0].output, mailbox(0, 0));
        assert_eq!(
            mailboxes[1].inputs[..3],
            [mailbox(0, 0), None, mailbox(64, 0)]
        );
        assert_eq!(mailboxes[1].output, mailbox(192, 1));
        assert_eq!(mailboxes[2].input, mailbox(192, 1));
        // Added columns and the gate come from the GEMV before the recurrence.
        assert_eq!(mailboxes[2].added, mailbox(0, 0));
        assert_eq!(mailboxes[2].gates, mailbox(128, 0));
        assert_eq!(mailboxes[2].output, None);
        assert_eq!(room, 256);
    }

    #[test]
    fn sums_of_a_recurrence_need_all_inputs_but_the_last() {
        let mut recurrence = recurrence([Some(rows(X, 64)), None, None]);
        recurrence.inputs[STEP_INPUTS - 1] = Some(rows(INNER, 64));
        assert!(recurrence.sums(rows(X, 8)) && !recurrence.sums(rows(INNER, 64)));
        assert_eq!(recurrence.accesses().reads.len(), 2);
    }

    #[test]
    fn a_recurrence_waits_if_not_all_of_its_inputs_are_passed() {
        let first = gemv(Epilogue::Store, None, rows(INNER, 64));
        let recurrence = recurrence([Some(rows(INNER, 64)), Some(rows(X, 64)), None]);
        let last = gemv(Epilogue::Store, Some(rows(HEADS, 64)), rows(X, 64));
        let ops = [
            MailboxRole::Gemv(&first),
            MailboxRole::Recurrence(&recurrence),
            MailboxRole::Gemv(&last),
        ];
        let (mailboxes, _) = assign_mailboxes(&ops);
        assert_eq!(mailboxes[0].output, None);
        assert!(mailboxes[1].inputs.is_empty());
        assert!(mailboxes[1].output.is_some());
    }

    #[test]
    fn nothing_is_passed_that_comes_from_elsewhere_or_is_added_to_in_part() {
        let mailboxes = |gemvs: [Gemv; 2]| {
            let ops: Vec<_> = gemvs.iter().map(MailboxRole::Gemv).collect();
            assign_mailboxes(&ops).0[0].output.is_some()
        };
        let with = |second| mailboxes([gemv(Epilogue::Store, None, rows(X, 64)), second]);
        let part = Some(rows(X + 128, 32));
        assert!(with(gemv(Epilogue::Store, part, rows(INNER, 8))));
        // Inputs from other columns, or from more columns than the GEMV writes.
        assert!(!with(gemv(Epilogue::Store, None, rows(INNER, 8))));
        assert!(!with(gemv(
            Epilogue::Store,
            Some(rows(INNER, 64)),
            rows(X, 64)
        )));
        assert!(!with(gemv(
            Epilogue::Store,
            Some(rows(X, 65)),
            rows(INNER, 8)
        )));
        // Columns that a later op of the run overwrites are published but not stored.
        let over = gemv(Epilogue::Store, part, rows(X, 32));
        let first = gemv(Epilogue::Store, None, rows(X, 64));
        let (mailboxes, _) =
            assign_mailboxes(&[MailboxRole::Gemv(&first), MailboxRole::Gemv(&over)]);
        assert!(mailboxes[0].output.is_some() && !mailboxes[0].stores && mailboxes[1].stores);
        // An output is added to before every block has read all of it.
        assert!(!with(gemv(Epilogue::Add, part, rows(X, 64))));
    }
}
