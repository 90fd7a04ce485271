#[cfg(unix)]
use std::{fs::File, path::Path, time::Duration};

use waterline_quant::F32;

use super::*;

/// A model of one matrix, whose values are in a file.
#[cfg(unix)]
fn of_file(path: &Path) -> Identity {
    let data = Bytes::map_file(path).unwrap();
    of_bytes(data)
}

fn of_bytes(data: Bytes) -> Identity {
    let shape = vec![data.len() / 4];
    let tensors = Tensors::from([("a".into(), Tensor::new(&F32, shape, data).unwrap())]);
    Identity::new("a model".into(), vec!["a".into()], &tensors)
}

#[cfg(unix)]
fn fingerprint(identity: &Identity, cache: &cache::Cache) -> Fingerprint {
    identity.computed(cache).unwrap()
}

#[test]
fn every_byte_counts_wherever_the_tensor_is() {
    let mut values = vec![0u8; 3 * CHUNK + 400];
    let of = |values: &[u8]| of_bytes(Bytes::from_vec(values.to_vec()));
    let first = of(&values);
    for at in [0, SAMPLE, CHUNK - 1, CHUNK, 3 * CHUNK + 399] {
        values[at] = 1;
        let other = of(&values);
        assert_eq!(first.label() == other.label(), at >= SAMPLE, "{at}");
        assert!(!first.is_same(&other), "byte {at}");
        values[at] = 0;
    }
    let again = of(&values);
    assert!(again.is_same(&first) && first.is_same(&first));
    let name = Identity {
        description: "another".into(),
        ..of(&values)
    };
    assert_ne!(name.fingerprint().unwrap(), first.fingerprint().unwrap());
}

#[cfg(unix)]
#[test]
fn digests_are_cached_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let cache = cache::Cache::at(folder.path().join("cache"));
    let files = || std::fs::read_dir(folder.path().join("cache")).map_or(0, Iterator::count);
    std::fs::write(&path, [1u8; 8000]).unwrap();
    let new = fingerprint(&of_file(&path), &cache);
    assert_eq!(files(), 0, "a file that may still change");
    assert_eq!(
        new,
        of_bytes(Bytes::from_vec(vec![1; 8000]))
            .fingerprint()
            .unwrap()
    );

    let stored = cache::Cache::settled(folder.path().join("cache"));
    assert_eq!(fingerprint(&of_file(&path), &stored), new);
    assert_eq!(files(), 1);
    let cached = std::fs::read_dir(folder.path().join("cache"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let bytes = std::fs::read(cached.path()).unwrap();
    // The digests in the cache are used.
    let mut changed = bytes.clone();
    changed[8] ^= 1;
    let check = Sha256::digest(&changed[8..40]);
    changed[40..].copy_from_slice(&check);
    std::fs::write(cached.path(), &changed).unwrap();
    assert_ne!(fingerprint(&of_file(&path), &stored), new);
    // Damage is not.
    changed[8] ^= 2;
    for damaged in [&changed[..], &bytes[..30], &[]] {
        std::fs::write(cached.path(), damaged).unwrap();
        assert_eq!(fingerprint(&of_file(&path), &stored), new);
    }
    // Contents of the same size and time of modification.
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let mut other = vec![1u8; 8000];
    other[6000] = 2;
    std::fs::write(&path, &other).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    let found = fingerprint(&of_file(&path), &stored);
    assert_eq!(
        found,
        of_bytes(Bytes::from_vec(other)).fingerprint().unwrap()
    );
    assert_ne!(found, new);
    // A folder that others may write to is not used.
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path().join("cache"), open).unwrap();
    std::fs::remove_file(cached.path()).unwrap();
    let before = files();
    std::fs::write(&path, [3u8; 8000]).unwrap();
    fingerprint(&of_file(&path), &stored);
    assert_eq!(files(), before);
}
