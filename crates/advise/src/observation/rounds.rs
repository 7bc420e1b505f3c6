//! Rounds of looks as records have them: `[at_us, pages, [[after_us, touched, pages], ...]]`.

use ramfold_model::rounds::{Look, Round};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Written = (u64, u64, Vec<(u64, u64, u64)>);

pub(super) fn serialize<S: Serializer>(rounds: &[Round], serializer: S) -> Result<S::Ok, S::Error> {
    let written = |round: &Round| -> Written {
        let looks = round.looks.iter().map(|look| (look.after_us, look.touched, look.pages));
        (round.at_us, round.pages, looks.collect())
    };
    rounds.iter().map(written).collect::<Vec<_>>().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Round>, D::Error> {
    let round = |(at_us, pages, looks): Written| {
        let look = |(after_us, touched, pages)| Look { after_us, touched, pages };
        Round { at_us, pages, looks: looks.into_iter().map(look).collect() }
    };
    Ok(Vec::<Written>::deserialize(deserializer)?.into_iter().map(round).collect())
}
