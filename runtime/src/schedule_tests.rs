//! Every op order that a schedule allows gives the same bits, for every recorded case.

use std::path::PathBuf;
use std::sync::Arc;

use crate::cpu::Pool;
use crate::cuda::Device;
use crate::instrument::{run_named, unnoticed};
use crate::loaded::Model;
use crate::operands::{Hazard, Operand, PRODUCT};
use crate::program::{Link, Schedule, Workspace, operand_name};
use crate::state::{Arena, StateOptions};

/// Lengths of consecutive chunks; the last ones make windows overflow.
const CHUNKS: [usize; 6] = [5, 1, 19, 1, 40, 3];

/// All recorded cases of the repository.
fn cases() -> Vec<(String, Arc<Model>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let entries = std::fs::read_dir(folder).expect("the folder of cases");
    let folders = entries.map(|entry| entry.expect("an entry").path());
    let mut cases: Vec<_> = folders
        .filter(|folder| folder.join("meta.json").exists())
        .map(|folder| {
            let name = folder.display().to_string();
            (name, Model::open(&folder).expect("a model"))
        })
        .collect();
    // Mixers without a recorded case.
    for name in ["gla", "gsa", "softmax-gla", "sse-n4k1"] {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models");
        let model = Model::open(file.join(format!("{name}.gguf")));
        cases.push((name.into(), model.expect("a model")));
    }
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

/// Reads the chunks with a new workspace by calling `run(workspace, arena, tokens, position)` for each. Returns the logits after each
/// chunk and the final state.
fn read(
    model: &Model,
    mut run: impl FnMut(&mut Workspace, &mut Arena, &[u32], u64),
) -> (Vec<f32>, Vec<u8>) {
    let pool = Arc::new(Pool::new(2).expect("threads"));
    let plan = model.plan(&StateOptions::default()).expect("a plan");
    let mut arena = Arena::new(Arc::new(plan)).expect("memory");
    let mut engine = Workspace::new(model.program(), pool, 40).expect("memory");
    let (mut all, mut position) = (Vec::new(), 0);
    for chunk in CHUNKS {
        let vocab = model.spec().vocab;
        let token = |t: usize| ((position + t) * 7919 % 1031 % vocab) as u32;
        let tokens: Vec<u32> = (0..chunk).map(token).collect();
        run(&mut engine, &mut arena, &tokens, position as u64);
        let mut logits = vec![0.0; vocab];
        engine.logits(model.program(), chunk - 1..chunk, &mut logits);
        all.extend(logits);
        position += chunk;
    }
    (all, arena.bytes().to_vec())
}

/// A random topological order of the ops, without the logits.
fn order(schedule: &Schedule, random: &mut fastrand::Rng) -> Vec<usize> {
    let count = schedule.ops.len() - 1;
    let edges = schedule.dependencies.iter().filter(|edge| edge.to < count);
    let mut waits = vec![0; count];
    edges.clone().for_each(|edge| waits[edge.to] += 1);
    let mut free: Vec<usize> = (0..count).filter(|&op| waits[op] == 0).collect();
    let mut order = Vec::new();
    while !free.is_empty() {
        let op = free.swap_remove(random.usize(..free.len()));
        order.push(op);
        for edge in edges.clone().filter(|edge| edge.from == op) {
            waits[edge.to] -= 1;
            if waits[edge.to] == 0 {
                free.push(edge.to);
            }
        }
    }
    assert_eq!(order.len(), count, "a cycle");
    order
}

#[test]
fn every_order_that_the_schedule_allows_gives_the_same_bits() {
    let mut random = fastrand::Rng::with_seed(29);
    let mut others = 0;
    for (name, model) in cases() {
        let program = model.program();
        let expected = read(&model, |engine, arena, tokens, position| {
            engine.run(program, arena, tokens, position);
        });
        let schedule = model
            .schedule(&StateOptions::default())
            .expect("a schedule");
        for _ in 0..4 {
            let found = read(&model, |engine, arena, tokens, position| {
                let order = order(&schedule, &mut random);
                others += usize::from(!order.is_sorted());
                let mut frame = engine.frame(arena, tokens, position);
                order.iter().for_each(|&op| program.ops[op].run(&mut frame));
            });
            let bits = |(logits, _): &(Vec<f32>, _)| -> Vec<u32> {
                logits.iter().map(|x| x.to_bits()).collect()
            };
            assert_eq!(bits(&found), bits(&expected), "{name}");
            assert!(found.1 == expected.1, "{name}: another state");
        }
    }
    assert!(
        others > 20,
        "only {others} orders differ from the model's own"
    );
}

#[test]
fn ops_touch_what_they_name() {
    for (name, model) in cases() {
        read(&model, |engine, arena, tokens, position| {
            let mut frame = engine.frame(arena, tokens, position);
            for (index, op) in model.program().ops.iter().enumerate() {
                run_named(&**op, &mut frame, &[PRODUCT])
                    .unwrap_or_else(|error| panic!("{name}: op {index}, {error}"));
            }
        });
    }
}

#[test]
fn an_operand_that_is_not_named_is_noticed() {
    let plan = StateOptions::default();
    for (name, model) in cases() {
        // Operands that no chunk read or wrote.
        let mut missed: Option<Vec<(usize, Operand)>> = None;
        let mut position_before = 0;
        read(&model, |engine, arena, tokens, position| {
            position_before = position;
            let mut now = Vec::new();
            let mut frame = engine.frame(arena, tokens, position);
            for (index, op) in model.program().ops.iter().enumerate() {
                let unnoticed = unnoticed(&**op, &mut frame, &[PRODUCT]);
                now.extend(unnoticed.into_iter().map(|operand| (index, operand)));
                op.run(&mut frame);
            }
            missed = Some(match missed.take() {
                Some(missed) => missed.into_iter().filter(|m| now.contains(m)).collect(),
                None => now,
            });
        });
        let plan = model.plan(&plan).expect("a plan");
        let missed = missed.unwrap_or_default();
        // A convolution of one tap has an empty history.
        let is_empty = |operand| matches!(operand, Operand::State(tensor) if plan.tensors()[tensor].bytes == 0);
        let names: Vec<_> = missed
            .iter()
            .filter(|&&(_, operand)| !is_empty(operand))
            .map(|&(op, operand)| (model.program().ops[op].name(), operand_name(operand, &plan)))
            // Only a GPU's router stores these.
            .filter(|(op, tensor)| !(*op == "Score" && tensor.ends_with("window_scores")))
            .collect();
        assert!(names.is_empty(), "{name}: never needed: {names:?}");
    }
}

#[test]
fn a_schedule_orders_what_meets() {
    for (name, model) in cases() {
        let schedule = model
            .schedule(&StateOptions::default())
            .expect("a schedule");
        for edge in &schedule.dependencies {
            assert!(edge.from < edge.to, "{name}");
            let level = |op: usize| schedule.ops[op].level;
            assert!(level(edge.from) < level(edge.to), "{name}");
        }
        let last = schedule.ops.last().expect("logits");
        assert_eq!((&*last.op, last.level + 1), ("Logits", schedule.levels));
    }
}

#[test]
fn a_decode_kernel_keeps_every_dependency() {
    let device = Device::compile_only("sm_90", 132, None);
    let (mut mailboxes, mut refusals) = (0, 0);
    for (name, model) in cases() {
        let options = StateOptions::default();
        let schedule = model.schedule_on(&options, &device).expect("a schedule");
        let gpu = schedule.gpu.as_deref().unwrap_or_default();
        assert!(gpu.contains("one kernel"), "{name}: {gpu}");
        refusals += schedule
            .ops
            .iter()
            .map(|op| op.not_fused.len())
            .sum::<usize>();
        for edge in &schedule.dependencies {
            let link = edge.link.expect("a link");
            mailboxes += usize::from(link == Link::Mailbox);
            // Only read-after-write dependencies may use a mailbox.
            let reads = edge.hazard == Hazard::ReadAfterWrite;
            assert!(link != Link::Mailbox || reads, "{name}: {edge:?}");
        }
    }
    assert!(mailboxes > 100, "only {mailboxes} mailboxes");
    assert!(refusals > 0, "every map is fused");
}
