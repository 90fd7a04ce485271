//! sentencepiece's precompiled normalization map: a double-array trie of bytes, and the texts that its values point to.

use serde_json::Value;

use waterline_error::base64::decode;

/// Size limit in bytes: six times the size of a published map.
const MAX_BYTES: usize = 2 << 20;

/// Checks that no text can lead outside the map, which the `tokenizers` crate does not check. The error is a reason.
pub(super) fn check(base64: &Value) -> Result<(), String> {
    let fail = |reason: &str| Err(format!("Precompiled: precompiled_charsmap: {reason}"));
    let Some(bytes) = base64.as_str().and_then(decode) else {
        return fail("found invalid Base64");
    };
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else {
        return fail("found no trie");
    };
    let size = u32::from_le_bytes(*size) as usize;
    if bytes.len() > MAX_BYTES || !size.is_multiple_of(4) || size == 0 || size > rest.len() {
        return fail("the size of its trie does not fit its length");
    }
    let (trie, texts) = rest.split_at(size);
    let units: Vec<u32> = trie
        .as_chunks::<4>()
        .0
        .iter()
        .map(|unit| u32::from_le_bytes(*unit))
        .collect();
    let Ok(texts) = std::str::from_utf8(texts) else {
        return fail("its strings are not UTF-8");
    };
    let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
    let mut seen = vec![false; units.len()];
    // Positions with unvisited children, with the offset of their unit applied.
    let mut bases = vec![offset(units[0])];
    seen[0] = true;
    while let Some(base) = bases.pop() {
        for byte in 1..=255 {
            let place = base ^ byte;
            let Some(&unit) = units.get(place) else {
                return fail("its trie has a link past its own end");
            };
            if unit & ((1 << 31) | 0xff) != byte as u32 || std::mem::replace(&mut seen[place], true)
            {
                continue;
            }
            let below = place ^ offset(unit);
            if unit >> 8 & 1 == 1 {
                let text = units
                    .get(below)
                    .map(|leaf| (leaf & ((1 << 31) - 1)) as usize);
                if text.is_none_or(|at| !texts.is_char_boundary(at)) {
                    return fail("its trie points past the end of its strings");
                }
            }
            bases.push(below);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use waterline_error::base64::encode;

    #[test]
    fn maps_that_lead_outside_are_refused() {
        let map = |units: &[u32], texts: &[u8]| {
            let mut bytes = (units.len() as u32 * 4).to_le_bytes().to_vec();
            units
                .iter()
                .for_each(|unit| bytes.extend(unit.to_le_bytes()));
            bytes.extend(texts);
            json!(encode(&bytes))
        };
        let mut units = vec![0u32; 256];
        assert_eq!(check(&map(&units, b"a\0")), Ok(()));
        // 'a' is a leaf with the value at position 1.
        units[0x61] = 0x61 | 1 << 8 | 0x60 << 10;
        assert_eq!(check(&map(&units, b"a\0")), Ok(()));
        units[1] = 3;
        check(&map(&units, b"a\0")).unwrap_err();
        units[0x61] = 0x61 | 1 << 8 | 0x1000 << 10;
        check(&map(&units, b"a\0")).unwrap_err();
        check(&map(&[0], b"a")).unwrap_err();
        check(&map(&[0; 256], b"\xff")).unwrap_err();
        for broken in [
            json!(null),
            json!(""),
            json!("AAAA"),
            json!("????"),
            json!("/////w=="),
        ] {
            check(&broken).unwrap_err();
        }
    }
}
