// The protocol of src/comm/board.hpp, for Spin. docs/protocol.md says what is checked; scripts/model runs it.
//
// Every statement and every atomic block is one access to a shared word, as the C++ makes it. Where two accesses are
// taken together a comment says why no behaviour is lost. All accesses have one order: they are sequentially
// consistent. A rank may be killed between any two of them.

// The size of a run.
#ifndef RANKS
#define RANKS 2
#endif
#ifndef CALLS
#define CALLS 2    // each an announcement, and a move where its bit of MOVES is set
#endif
#ifndef MOVES
#define MOVES 3
#endif
#ifndef PATTERN
#define PATTERN 0  // who reads in a move: 0 everybody from everybody, 1 everybody from rank 0, 2 each from the next one
#endif
#ifndef ROUNDS
#define ROUNDS 1   // of a move; a later one reads what an earlier one wrote
#endif
#ifndef SLEEP
#define SLEEP 1    // 0: a waiting rank sees every change; nobody sleeps and nobody wakes
#endif
// What may go wrong, and how often.
#ifndef DEATHS
#define DEATHS 0   // a process is killed
#endif
#ifndef TROUBLE
#define TROUBLE 0  // a rank gives up by itself: at its deadline, or because its part of a call fails
#endif
#ifndef LEAVES
#define LEAVES 0   // a rank leaves before its last call
#endif
#ifndef IDLES
#define IDLES 0    // a rank stops calling, and lives on
#endif
#ifndef EXITS
#define EXITS 0    // 1: a process ends when its rank has finished, and its peers are told of it as of a death
#endif
#ifndef BOUNDED
#define BOUNDED 0  // 1: an abort does not wait for claims for ever (processes); 0: it does (threads)
#endif
#ifndef MUTANT
#define MUTANT 0   // a planted fault, to see that the checks can fail; scripts/model lists them
#endif

#if RANKS == 2
#define each_rank(f) f(0); f(1)
#define any_rank(f) (f(0) || f(1))
#else
#define each_rank(f) f(0); f(1); f(2)
#define any_rank(f) (f(0) || f(1) || f(2))
#endif
// The peers in the order of their numbers.
#define lower_peer (me == 0 -> 1 : 0)
#define upper_peer (me == 2 -> 1 : 2)

// The text of a verdict.
#define torn 0
#define lost(p) (1 + (p))                 // p died
#define gave_up(p) (1 + RANKS + (p))      // p met trouble of its own
#define left_us(p) (1 + 2 * RANKS + (p))  // p left
#define nameless (1 + 3 * RANKS)          // of a rank that found a verdict: it must not be heard

#if MUTANT == 3
#define side(call) 0
#else
#define side(call) ((call) % 2)
#endif
#define record(p, call) records[2 * (p) + side(call)]
#define being_overwritten 255

#define has_move(call) ((MOVES >> ((call) - 1)) & 1)
#if PATTERN == 0
#define reads(p, q) ((p) != (q))
#elif PATTERN == 1
#define reads(p, q) ((p) != 0 && (q) == 0)
#else
#define reads(p, q) ((q) == ((p) + 1) % RANKS)
#endif

#define closed(p) (step[p] & 1)
#define reached(p) (step[p] >= steps)  // `steps` is even, so the lowest bit of the word does not matter
#define went_on(p) (step[p] >= steps + 2)
// The word beside the record, which is written when that is whole: so one with it here. Only who waits for all looks at it,
// while it spins, and at nothing else meanwhile.
#if MUTANT == 17
#define heard(p) (record(p, call) == call || record(p, call) == being_overwritten)
#else
#define heard(p) (record(p, call) == call)
#endif

// The words that the ranks share.
byte step[RANKS];      // twice the steps made; odd: closed
byte sleepers[RANKS];
bool claim[RANKS];
byte parted[RANKS];    // whether, and how, a rank left
#define said_farewell 1
#define declared_dead 2
byte verdict;          // 0: none
#define published 1
byte text;             // of the verdict that was published
byte records[2 * RANKS];

// What the kernel knows.
#define awake 0
#define on_slot(p) ((p) + 1)
byte asleep[RANKS];
bool dead[RANKS];
chan kill = [0] of { byte };

// What only the checks know.
byte lent[RANKS];      // in which call others may read this rank's memory; 0: it is the caller's again
#if ROUNDS > 1
byte wrote[RANKS];     // how many rounds of the call it has finished copying
#define set_wrote(rounds) wrote[me] = rounds
#define not_written(k) (wrote[k] < round)
#else
#define set_wrote(rounds) skip
#define not_written(k) false
#endif
bool finished[RANKS];
bool early[RANKS];     // it left before its last call
byte leaves, idles;
byte troubles = TROUBLE;  // still to come
bool troubled;
byte seen_text;        // the verdict that was thrown first

#if RANKS == 2
#define any_sleeper(s) (asleep[0] == on_slot(s) || asleep[1] == on_slot(s))
#else
#define any_sleeper(s) (asleep[0] == on_slot(s) || asleep[1] == on_slot(s) || asleep[2] == on_slot(s))
#endif
#define wake_from(k, s) asleep[k] = (asleep[k] == on_slot(s) -> awake : asleep[k])

inline wake(s) {
#if RANKS == 2
  d_step { wake_from(0, s); wake_from(1, s) }
#else
  d_step { wake_from(0, s); wake_from(1, s); wake_from(2, s) }
#endif
}

inline close(s) {
  step[s] = step[s] | 1;
#if SLEEP
  wake(s)
#endif
}

// Closes every slot, in order: sets the bit, then wakes. A slot that is closed and where nobody sleeps stays so;
// closing it changes nothing, and takes no step here.
#if SLEEP
#define open(s) (!closed(s) || any_sleeper(s))
#define shut(s) if :: !closed(s) -> step[s] = step[s] | 1 :: else -> wake(s) fi
#else
#define open(s) (!closed(s))
#define shut(s) step[s] = step[s] | 1
#endif
inline close_all() {
  do
  :: atomic { open(0) -> shut(0) }
  :: atomic { !open(0) && open(1) -> shut(1) }
#if RANKS > 2
  :: atomic { !open(0) && !open(1) && open(2) -> shut(2) }
#endif
  :: atomic { !any_rank(open) -> break }
  od
}

inline add_step() {
#if MUTANT == 5
  atomic { steps = steps + 2; step[me] = steps }
#else
  atomic { steps = steps + 2; step[me] = step[me] + 2 }
#endif
}

inline make_step() {
#if !SLEEP
  add_step()
#elif MUTANT == 2
  if
  :: atomic { sleepers[me] != 0 }; add_step(); wake(me)
  :: atomic { sleepers[me] == 0 }; add_step()
  fi
#else
  add_step();
  if
  :: atomic { sleepers[me] != 0 }; wake(me)
  :: atomic { sleepers[me] == 0 }
  fi
#endif
}

// Why p's slot is closed: p said so, or its death was declared, before it was closed. Else an abort closed it; then
// there is a verdict, and this rank's reason is not heard.
#define reason(p) (parted[p] == declared_dead -> lost(p) : (parted[p] == said_farewell -> left_us(p) : nameless))

// Who waits for all looks at p's step, and then for the dead: somebody has not come, so no death can be too late to matter.
#define mourned(k) (parted[k] == declared_dead)
#if MUTANT == 16
#define missed(k) (mourned(k) && !reached(k))
#define ignored(k) mourned(k)  // at a deadline, which no death should come to
#elif MUTANT == 12
#define missed(k) false
#define ignored(k) false
#else
#define missed(k) mourned(k)
#define ignored(k) mourned(k)
#endif
#if RANKS == 2
#define the_dead (missed(0) -> lost(0) : lost(1))
#else
#define the_dead (missed(0) -> lost(0) : (missed(1) -> lost(1) : lost(2)))
#endif

#if IDLES
#define at_deadline(all) \
  :: atomic { \
      timeout && idles > 0 && verdict == 0 -> \
      assert(!(all) || !any_rank(ignored)); \
      why = gave_up(me); goto failed \
    }
#else
#define at_deadline(all)
#endif
#if TROUBLE
#define or_give_up(needed, p, all) \
  at_deadline(all) \
  :: atomic { \
      (needed) && !reached(p) && !closed(p) && troubles > 0 -> \
      troubles--; troubled = true; why = gave_up(me); goto failed \
    }
#else
#define or_give_up(needed, p, all) at_deadline(all)
#endif

// Where `needed`, waits for p's step; returns, or sets `why` and goes to `failed`. `all`: it is one of the waits for everybody.
inline wait_for(needed, p, all) {
  if
  :: atomic { !(needed) || reached(p) || ((all) && heard(p)) }
  :: atomic { (needed) && !reached(p) && closed(p) -> why = reason(p); goto failed }
#if SLEEP
  :: atomic { (needed) && !reached(p) && !closed(p) };  // spun long enough
    sleepers[p]++;
    do
    :: atomic { reached(p) -> break }
    :: atomic { !reached(p) && closed(p) -> why = reason(p); break }
#if DEATHS
    :: atomic { (all) && !reached(p) && !closed(p) && any_rank(missed) -> why = the_dead; break }
#endif
    // The look at the word and the futex call are one: where the word changes between them, the kernel finds another
    // value than the one that was seen, does not sleep, and the loop looks again.
#if MUTANT == 6
    :: atomic { !reached(p) && !closed(p) };
      asleep[me] = on_slot(p);
#else
    :: atomic { !reached(p) && !closed(p) -> asleep[me] = on_slot(p) };
#endif
      if
      :: asleep[me] == awake
#if DEATHS
      // It looks around now and then.
      :: atomic {
          (all) && any_rank(missed) ->
          asleep[me] = awake;
          if :: reached(p) :: !reached(p) && closed(p) -> why = reason(p) :: else -> why = the_dead fi;
          break
        }
#endif
#if IDLES
      // A deadline is needed for this alone: a rank that lives and does not call. After a verdict nobody needs it.
      :: atomic {
          timeout && idles > 0 && verdict == 0 ->
          assert(!reached(p));  // else it slept through a step
          assert(!(all) || !any_rank(ignored));
          asleep[me] = awake; why = gave_up(me); break
        }
#endif
      fi
#if TROUBLE
    // A deadline that passes early. Not while asleep, for there it would hide a wake-up that was lost.
    :: atomic { !reached(p) && !closed(p) && troubles > 0 -> troubles--; troubled = true; why = gave_up(me); break }
#endif
    od;
    atomic { sleepers[p]--; if :: why != 0 -> goto failed :: else fi }
#else
#if DEATHS
  // Between the two looks anything may happen.
  :: atomic { (all) && !reached(p) && !closed(p) };
    if
    :: atomic { any_rank(missed) -> why = the_dead; goto failed }
    :: atomic { reached(p) }
    :: atomic { !reached(p) && closed(p) -> why = reason(p); goto failed }
    or_give_up(needed, p, all)
    fi
#endif
  or_give_up(needed, p, all)
#endif
  fi
}

// Publishes this rank's reason unless there is a verdict. A rank writes its text into its own slot, where nobody looks,
// and publishes it by one compare-and-swap of the verdict word; so the two are one step here.
#if MUTANT != 4 && MUTANT != 7 && MUTANT != 13
inline publish() {
  if
  :: atomic { verdict == 0 -> verdict = published; text = why }
  :: atomic { verdict != 0 }
  fi
}
#else
// Another way: one text for all, and the word says who is writing it. Who comes later waits, and takes over from a
// writer that died (not in mutant 4) or that takes long (in mutant 13).
#define written_by(r) ((r) + 2)
#define being_written (verdict > published)
#define writer (verdict - 2)
#if MUTANT == 4
#define may_write (verdict == 0)
#elif MUTANT == 7
#define may_write (verdict == 0 || (being_written && parted[writer] == declared_dead))
#else
#define may_write (verdict != published)
#endif
inline publish() {
  do
  :: atomic { verdict == published -> break }
  :: atomic { may_write -> verdict = written_by(me) };
    text = torn;
    text = why;
    atomic { if :: verdict == written_by(me) -> verdict = published :: else fi; break }
  od
}
#endif

inline await_claim(p) {
  if
#if MUTANT == 8
  :: atomic { !claim[p] }
#else
  :: atomic { !claim[p] || parted[p] == declared_dead }
#endif
#if BOUNDED
  :: atomic { claim[p] && parted[p] != declared_dead }
#endif
  fi
}

#define check_record(k) assert(record(k, call) == call)
// Memory is never lent again for the same call, so one look at the end of a copy stands for one at every moment of it.
#define not_ready(k) (reads(me, k) && (lent[k] != call || not_written(k)))

// The caller has its memory back, and an error that is the same on every rank and tells the truth.
#define check_name(k) \
  assert(text != lost(k) || (dead[k] && !finished[k])); \
  assert(text != gave_up(k) || troubled || idles > 0); \
  assert(text != left_us(k) || early[k])
inline check_verdict() {
  d_step {
    lent[me] = 0;
    assert(text != torn && text != nameless);
    assert(seen_text == torn || seen_text == text);
    seen_text = text;
    each_rank(check_name)
  }
}

#define forget call = 0; round = 0; steps = 0; why = 0; garbage = false
#define finish forget; finished[me] = true; dead[me] = EXITS

proctype rank(byte me) {
  byte call, round, steps, why;
  bool garbage;
  {
    do
    :: atomic { call == CALLS -> break }
#if LEAVES
    :: atomic { leaves < LEAVES && call < CALLS -> leaves++; early[me] = true; break }
#endif
#if IDLES
    :: atomic { idles < IDLES -> idles++; goto end_idle }
#endif
    :: atomic { call < CALLS -> call++; if :: verdict != 0 -> why = nameless; goto failed :: else fi };

      // Announce. The records are read here, and where there is no move up to the end of the call.
      record(me, call) = being_overwritten;
      atomic { record(me, call) = call; lent[me] = call; set_wrote(0) };
      make_step();
      wait_for(true, (me + 1) % RANKS, true);
#if RANKS > 2
      wait_for(true, (me + 2) % RANKS, true);
#endif
      atomic { each_rank(check_record) };
      // A late rank finds everybody's record, though they have given up on it; unless somebody went on.
      if
      :: atomic { verdict == 0 }
      :: atomic { verdict != 0 };
        if
        :: atomic { any_rank(went_on) }
        :: atomic { !any_rank(went_on) -> why = nameless; goto failed }
        fi
      fi;
      if
      :: atomic { !has_move(call) -> each_rank(check_record); goto returns }
      :: atomic { has_move(call) -> claim[me] = (MUTANT != 1) }  // the first step of the move
#if TROUBLE
      :: atomic { has_move(call) && troubles > 0 -> troubles--; troubled = true; why = gave_up(me); goto failed }
#endif
      fi;

move:
#if MUTANT == 1
      atomic { if :: verdict != 0 -> why = nameless; goto failed :: else fi };
      claim[me] = true;
#else
      if
      :: atomic { verdict == 0 -> garbage = garbage || any_rank(not_ready) }
      :: atomic { verdict != 0 }; atomic { claim[me] = false; why = nameless; goto failed }
      fi;
#endif
      if
      :: atomic { garbage = garbage || any_rank(not_ready); assert(BOUNDED || !garbage); set_wrote(round + 1) }
      // The memory of the dead may be gone with them: then the copy fails.
      :: atomic { reads(me, lower_peer) && dead[lower_peer] -> why = lost(lower_peer) }
#if RANKS > 2
      :: atomic { reads(me, upper_peer) && dead[upper_peer] -> why = lost(upper_peer) }
#endif
      fi;
      atomic { claim[me] = false; if :: why != 0 -> goto failed :: else fi };
#if MUTANT != 10
      atomic { if :: verdict != 0 -> why = nameless; goto failed :: else fi };
#endif
      make_step();
#if MUTANT != 11
      wait_for(reads(lower_peer, me), lower_peer, false);
#if RANKS > 2
      wait_for(reads(upper_peer, me), upper_peer, false);
#endif
#endif

#if ROUNDS > 1
      atomic { if :: round + 1 < ROUNDS -> round++ :: else -> round = 0; goto returns fi };
#if MUTANT != 15
      // Before the first round this has been waited for.
      wait_for(reads(me, lower_peer), lower_peer, false);
#if RANKS > 2
      wait_for(reads(me, upper_peer), upper_peer, false);
#endif
#endif
      atomic { claim[me] = (MUTANT != 1); goto move };
#endif

returns:
      atomic { assert(!garbage); lent[me] = 0 }
    od;

    // Leave.
    parted[me] = said_farewell;
    close(me);
    atomic { finish; goto end_over };

failed:  // Abort.
    publish();
    close_all();
#if MUTANT != 9
    await_claim(lower_peer);
#if RANKS > 2
    await_claim(upper_peer);
#endif
#endif
    atomic { check_verdict(); finish; goto end_over };

end_idle:
    false
  } unless {
    atomic { kill?eval(me); dead[me] = true; asleep[me] = awake; forget }
  };
  // No process comes to its end: the step would only make more states.
end_over:
  false
}

// The thread that is told when a peer's process has ended, at any time after.
#define told_of(p) \
  atomic { \
    (p) != me && dead[p] && !known[p] && !dead[me] && !finished[me] -> \
    known[p] = true; peer = p; \
    if :: parted[p] == 0 -> parted[p] = declared_dead :: else -> if_it_left fi \
  }
#if MUTANT == 14
#define if_it_left goto end
#else
#define if_it_left skip  // it may have died before it closed its slot
#endif
proctype watcher(byte me) {
  byte peer;
  bool known[RANKS];
end:
  if
  :: told_of(0)
  :: told_of(1)
#if RANKS > 2
  :: told_of(2)
#endif
  fi;
  {
    close(peer);
#if MUTANT != 12
    // It may have died between publishing a verdict and closing the slots.
    if
    :: atomic { verdict == 0 }
    :: atomic { verdict != 0 }; close_all()
    fi;
#endif
    atomic { peer = 0; goto end }
  } unless { atomic { dead[me] -> peer = 0 } }
}

// Kills, or not. Were there always a death to come, no hang before it would be seen; so with troubles.
#if RANKS == 2
#define kill_one if :: kill!0 :: kill!1 :: goto end_mercy fi
#else
#define kill_one if :: kill!0 :: kill!1 :: kill!2 :: goto end_mercy fi
#endif
proctype fate() {
#if DEATHS > 0
  kill_one;
#endif
#if DEATHS > 1
  kill_one;
#endif
end_mercy:
  false
}
proctype luck() {
end:
  do
  :: atomic { troubles > 0 -> troubles = 0 }
  od
}

init {
  atomic {
    run rank(0); run rank(1);
    run watcher(0); run watcher(1);
#if RANKS > 2
    run rank(2); run watcher(2);
#endif
#if TROUBLE
    run luck();
#endif
    run fate()
  }
}
