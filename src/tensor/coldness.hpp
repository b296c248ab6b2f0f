// Which results no cache holds any more. A store to such a line reads it from memory first, only to write over it.
#pragma once

#include <cstdint>

namespace tessera {

// How many bytes must be handed out in between: a quarter of the last-level cache, of which a rank's inputs and its peers
// take their share too.
uint64_t cold_distance();

// The process has been given `bytes` at `block`, to write to. Any thread.
void note_block(const void* block, int64_t bytes);

// Whether so much else was handed out since that block was the last time that its lines are in no cache. Asked again: no,
// as it was written to since. Of memory that was never noted: no. A guess, for speed alone. Any thread.
bool take_cold(const void* block);

}  // namespace tessera
