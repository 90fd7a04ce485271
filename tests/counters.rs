//! Hostile numbers in a saved session: every integer of the state outside its declared range is rejected with a message, and the session is
//! unchanged; with the largest and smallest valid numbers the session continues. `WATERLINE_DEVICE=cuda` runs the sessions on a GPU,
//! `emulator` (a feature) runs the GPU kernels on the CPU; tests/sanitize.sh uses both under compute-sanitizer.

mod older;

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{ContextEnd, Device, Error, Model, Session, SessionOptions, Snapshot, StateDtype};

/// Returns every model under `tests/fixtures`; on a device, which compiles kernels for each model, one for each kind of counter.
fn models(on_device: bool) -> Vec<(String, Arc<Model>)> {
    const COUNTING: [&str; 6] = [
        "gdn_swa",
        "hax_mamba2_sw_dilated",
        "hax_mamba_argmax_ks_stream",
        "lalte_stream_gqa",
        "lansa",
        "transformer_full",
    ];
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let cases = std::fs::read_dir(folder).expect("tests/fixtures");
    let mut cases: Vec<PathBuf> = cases.map(|case| case.expect("an entry").path()).collect();
    cases.sort();
    cases.retain(|case| !on_device || COUNTING.iter().any(|name| case.ends_with(name)));
    let open = |path: PathBuf| {
        let model = Model::open(&path).expect("a fixture opens");
        (path.display().to_string(), model)
    };
    cases.into_iter().map(open).collect()
}

fn device() -> Option<Arc<Device>> {
    match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        #[cfg(feature = "emulator")]
        Ok("emulator") => Some(Device::emulated()),
        _ => None,
    }
}

fn session(model: &Arc<Model>, device: &Option<Arc<Device>>) -> Session {
    let mut options = SessionOptions::default();
    options.device = device.clone();
    (options.state.context, options.state.history) = (64, 16);
    (options.chunk, options.threads) = (8, 1);
    options.context_end = ContextEnd::Shift;
    Session::new(Arc::clone(model), options).expect("a session")
}

/// Returns the bytes of a saved session with number `index` of the state tensor at `offset` set to `value`, and a matching checksum.
fn with(file: &[u8], offset: usize, dtype: StateDtype, index: usize, value: u64) -> Vec<u8> {
    let mut file = file.to_vec();
    let table = u64::from_le_bytes(file[16..24].try_into().expect("eight bytes")) as usize;
    let arena = 24 + table + 8;
    let bytes = value.to_le_bytes();
    let width = if dtype == StateDtype::U64 { 8 } else { 4 };
    file[arena + offset + index * width..][..width].copy_from_slice(&bytes[..width]);
    let end = file.len() - 4;
    let sum = crc32fast::hash(&file[..end]);
    file[end..].copy_from_slice(&sum.to_le_bytes());
    file
}

fn bytes(session: &Session) -> Vec<u8> {
    older::file(
        &session.snapshot().expect("a snapshot"),
        session.model().label(),
    )
}

#[test]
fn counters_beyond_their_range_are_refused_and_change_nothing() {
    const VALUES: [u64; 12] = [
        0,
        1,
        5,
        40,
        255,
        1 << 16,
        i32::MAX as u64,
        u32::MAX as u64,
        1 << 40,
        i64::MAX as u64,
        u64::MAX - 40,
        u64::MAX,
    ];
    let (mut refused, mut read_on) = (0, 0);
    let device = device();
    for (name, model) in models(device.is_some()) {
        let mut session = session(&model, &device);
        let vocab = model.spec().vocab as u32;
        let tokens: Vec<u32> = (0..40).map(|i| (7 * i + 3) % vocab).collect();
        session.feed(&tokens).expect("a prompt");
        let file = bytes(&session);
        let snapshot = session.snapshot().expect("a snapshot");
        for (tensor, _) in snapshot.tensors() {
            let width = match tensor.dtype {
                StateDtype::U64 => 8,
                StateDtype::U32 => 4,
                _ => continue,
            };
            let count = tensor.bytes / width;
            for index in [0, count / 2, count - 1] {
                for value in VALUES {
                    if width == 4 && value > u64::from(u32::MAX) {
                        continue;
                    }
                    let what = format!(
                        "{name}: {:?} {}[{index}] = {value}",
                        tensor.layer, tensor.name
                    );
                    let changed = with(&file, tensor.offset, tensor.dtype, index, value);
                    let read = Snapshot::read(&mut &changed[..], changed.len() as u64, "changed");
                    match session.restore(&read.expect("its checksum fits")) {
                        Ok(()) => {
                            read_on += 1;
                            session
                                .feed(&tokens[..20])
                                .unwrap_or_else(|e| panic!("{what}: {e}"));
                            session.restore(&snapshot).expect("its own");
                        }
                        Err(Error::Snapshot { reason, .. }) => {
                            refused += 1;
                            assert!(reason.contains(&tensor.name), "{what}: {reason}");
                            assert!(bytes(&session) == file, "{what}: the session changed");
                        }
                        Err(other) => panic!("{what}: {other}"),
                    }
                }
            }
        }
    }
    println!("{refused} counters refused, {read_on} read on");
    assert!(
        refused > 100 && read_on > 100,
        "{refused} refused, {read_on} read on"
    );
}

/// Returns the bytes of a saved session with a changed table of state tensors, and a matching checksum.
fn with_table(file: &[u8], table: impl Fn(&str) -> String) -> Vec<u8> {
    let length = u64::from_le_bytes(file[16..24].try_into().expect("eight bytes")) as usize;
    let (head, rest) = file[..file.len() - 4].split_at(24);
    let (old, rest) = rest.split_at(length);
    let table = table(std::str::from_utf8(old).expect("JSON"));
    let mut changed = head[..16].to_vec();
    changed.extend((table.len() as u64).to_le_bytes());
    changed.extend(table.as_bytes());
    changed.extend(rest);
    changed.extend(crc32fast::hash(&changed).to_le_bytes());
    changed
}

#[test]
fn files_of_older_versions_open_or_are_refused_by_a_sentence() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = Model::open(folder.join("gdn_swa")).expect("a fixture opens");
    let mut here = session(&model, &None);
    here.feed(&[5, 3, 1, 4, 1, 5, 9, 2, 6]).expect("a prompt");
    let file = bytes(&here);

    // Older versions called layers blocks, and the history a log.
    let older = with_table(&file, |table| {
        let table = table.replace("\"layer\":", "\"block\":");
        table.replace("\"history\"", "\"log\"")
    });
    assert_ne!(older, file);
    let read = |file: &[u8]| Snapshot::read(&mut &file[..], file.len() as u64, "older");
    let mut there = session(&model, &None);
    there
        .restore(&read(&older).expect("a session"))
        .expect("the same layout");
    assert_eq!(bytes(&there), file);

    // A version that describes a model differently computes another fingerprint for it.
    let mut other = with_table(&file, str::to_string);
    assert_eq!(other, file);
    other[8] ^= 1;
    let other = with_table(&other, str::to_string);
    let refused = there.restore(&read(&other).expect("a session"));
    let sentence = refused.expect_err("another fingerprint").to_string();
    assert!(sentence.contains("another model than"), "{sentence}");
    assert!(sentence.contains("by a version that"), "{sentence}");
    assert_eq!(bytes(&there), file);
}

/// Returns the bytes of a saved session with 64 more bytes in its arena, and a matching checksum.
fn with_longer_arena(file: &[u8]) -> Vec<u8> {
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"));
    let at = 24 + number(16) as usize;
    let end = at + 8 + number(at) as usize;
    let mut changed = file[..at].to_vec();
    changed.extend((number(at) + 64).to_le_bytes());
    changed.extend(&file[at + 8..end]);
    changed.extend([0; 64]);
    changed.extend(&file[end..file.len() - 4]);
    changed.extend(crc32fast::hash(&changed).to_le_bytes());
    changed
}

#[test]
fn tables_that_no_plan_lays_out_are_refused() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = Model::open(folder.join("gdn_swa")).expect("a fixture opens");
    let file = bytes(&session(&model, &None));
    let replaced = |from: &str, to: &str| {
        let changed = with_table(&file, |table| table.replacen(from, to, 1));
        assert_ne!(changed, file, "{from}");
        changed
    };
    let all = [
        with_longer_arena(&file),
        // Two tensors in one place, one after the arena's end, one with a byte count that does not
        // match its shape.
        replaced("\"offset\":64,", "\"offset\":0,"),
        replaced("\"offset\":64,", "\"offset\":18446744073709551552,"),
        replaced("\"shape\":[1],", "\"shape\":[2],"),
    ];
    for changed in all {
        let read = Snapshot::read(&mut &changed[..], changed.len() as u64, "changed");
        let sentence = read.err().expect("a refusal").to_string();
        assert!(sentence.contains("do not fit together"), "{sentence}");
    }
}
