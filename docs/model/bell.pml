// The bell of a rank and the letters between ranks (src/transport/shm/world.hpp, mail.cpp), for Spin. docs/protocol.md
// says what is checked; scripts/model runs it.
//
// A rank that waits for one of several things notes its bell, looks at all of them, and sleeps while the bell is what
// was noted. Everybody else changes something and then rings: adds one to the bell, and wakes where somebody sleeps.
// Here each rank sends MESSAGES letters to the next rank and receives as many from the one before; it posts, waits for
// what it receives, then for what it sent. As in board.pml every statement is one access, and a rank may be killed
// between any two.

#ifndef RANKS
#define RANKS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef LEAVES
#define LEAVES 0   // a rank leaves before its last message
#endif
#ifndef MUTANT
#define MUTANT 0   // a planted fault; scripts/model lists them
#endif

#define next ((me + 1) % RANKS)
#define previous ((me + RANKS - 1) % RANKS)

// The words that the ranks share.
bool rung[RANKS];      // whether the bell is another number than its rank has noted: all that matters of it
bool sleepers[RANKS];  // one thread a rank waits here, so it is no number
byte letter[RANKS];    // the letter that a rank has sent
#define empty 0
#define posted 1
#define taken 2
#define delivered 3
byte number[RANKS];    // which message it is
byte parted[RANKS];
#define said_farewell 1
#define declared_dead 2
bool verdict;

// What the kernel knows.
bool asleep[RANKS];
bool dead[RANKS];
chan kill = [0] of { byte };

// What one process knows.
bool told[RANKS * RANKS];
#define told_dead(p) told[me * RANKS + (p)]

// What only the checks know.
bool lent[RANKS];      // the receiver may read what was sent
bool finished[RANKS];
bool leaver;           // some rank left early

inline ring(p) {
  rung[p] = true;
  if
  :: atomic { sleepers[p] }; asleep[p] = false
  :: atomic { !sleepers[p] }
  fi
}

inline ring_all() {
  ring(0);
  ring(1)
#if RANKS > 2
  ; ring(2)
#endif
}

#if MUTANT == 1
#define note_before skip
#define note_after rung[me] = false
#else
#define note_before rung[me] = false
#define note_after skip
#endif

inline sleep() {
  atomic { note_after };
#if MUTANT == 4
  asleep[me] = true;
#else
  atomic { asleep[me] = !rung[me] };
#endif
  atomic { !asleep[me] }
}

#define forget message = 0; withdrawn = false; failing = false
proctype rank(byte me) {
  byte message;
  bool withdrawn, failing;
  {
    do
    :: atomic { message == MESSAGES -> break }
#if LEAVES
    :: atomic { message < MESSAGES && !leaver -> leaver = true; break }
#endif
    :: atomic { message < MESSAGES -> message++; number[me] = message; lent[me] = true };
      // Send.
#if MUTANT == 2
      ring(next);
      letter[me] = posted;
#else
      letter[me] = posted;
      ring(next);
#endif

      // Receive.
      sleepers[me] = true;
look_in:
      atomic { note_before };
      if
      :: atomic { verdict -> goto receives_nothing }
      :: atomic { !verdict }
      fi;
      if
      :: atomic { letter[previous] == posted -> letter[previous] = taken; assert(number[previous] == message) };
        if
        :: atomic { assert(lent[previous]); letter[previous] = delivered }  // copied, while it was the sender's to lend
        :: atomic { dead[previous] -> goto receives_nothing }               // its memory is gone
        fi;
        ring(previous);
        goto receives
      :: atomic { letter[previous] != posted }
      fi;
      if
      :: atomic { verdict -> goto receives_nothing }
      :: atomic { !verdict }
      fi;
      if
      :: atomic { parted[previous] != 0 -> goto receives_nothing }
      :: atomic { parted[previous] == 0 }
      fi;
      sleep();
      goto look_in;
receives_nothing:
      sleepers[me] = false;
      verdict = true;
      ring_all();
      atomic { failing = true; goto settle };
receives:
      sleepers[me] = false;

      // Wait until what was sent is there.
      sleepers[me] = true;
look_out:
      atomic { note_before };
      if
      :: atomic { letter[me] == delivered -> goto looked_out }
      :: atomic { letter[me] != delivered }
      fi;
      if
      :: atomic { verdict -> goto looked_out }
      :: atomic { !verdict }
      fi;
      if
      :: atomic { parted[next] != 0 -> goto looked_out }
      :: atomic { parted[next] == 0 }
      fi;
      sleep();
      goto look_out;
looked_out:
      sleepers[me] = false;

settle:
      // Takes the letter back, unless it was taken: then the copy is waited for, whatever has happened.
      if
#if MUTANT == 6
      :: atomic { verdict || parted[next] != 0 -> withdrawn = true }
      :: atomic { letter[me] == delivered && !verdict && parted[next] == 0 }
#elif MUTANT == 7
      :: atomic { letter[me] == posted || letter[me] == taken -> letter[me] = empty; withdrawn = true }
      :: atomic { letter[me] == delivered }
#else
      :: atomic { letter[me] == posted -> letter[me] = empty; withdrawn = true }
      :: atomic { letter[me] == delivered }
      :: atomic { letter[me] == taken };
        sleepers[me] = true;
look_on:
        atomic { note_before };
        if
        :: atomic { letter[me] == delivered -> goto looked_on }
        :: atomic { letter[me] != delivered }
        fi;
        if
        :: atomic { told_dead(next) -> goto looked_on }
        :: atomic { !told_dead(next) }
        fi;
        sleep();
        goto look_on;
looked_on:
        sleepers[me] = false;
        atomic { if :: letter[me] == delivered :: else -> withdrawn = true fi }
#endif
      fi;
      if
      :: atomic { !withdrawn && !failing -> letter[me] = empty; lent[me] = false }
      :: atomic { withdrawn && !failing -> assert(letter[me] != delivered) };
        verdict = true;
        ring_all();
        goto fails
      :: atomic { failing -> goto fails }
      fi
    od;
    parted[me] = said_farewell;
#if MUTANT != 5
    ring_all();
#endif
    atomic { forget; finished[me] = true; goto end_over };

fails:
    atomic {
      assert(verdict);
      assert(leaver || dead[0] || dead[1] || dead[RANKS - 1]);
      lent[me] = false; forget; finished[me] = true; goto end_over
    }
  } unless {
    atomic { kill?eval(me); dead[me] = true; asleep[me] = false; forget }
  };
  // No process comes to its end: the step would only make more states.
end_over:
  false
}

// The thread that is told when a peer's process has ended, at any time after.
#define told_of(p) \
  atomic { \
    (p) != me && dead[p] && !told_dead(p) && !dead[me] && !finished[me] -> \
    told_dead(p) = true; parted[p] = (parted[p] == 0 -> declared_dead : parted[p]) \
  }
proctype watcher(byte me) {
end:
  if
  :: told_of(0)
  :: told_of(1)
#if RANKS > 2
  :: told_of(2)
#endif
  fi;
  {
#if MUTANT != 3
    ring(me);
#endif
    goto end
  } unless { dead[me] }
}

// Kills, or not. Were there always a death to come, no hang before it would be seen.
proctype fate() {
#if DEATHS
  if
  :: kill!0
  :: kill!1
#if RANKS > 2
  :: kill!2
#endif
  :: true
  fi;
#endif
end_mercy:
  false
}

init {
  atomic {
    run rank(0); run rank(1);
    run watcher(0); run watcher(1);
#if RANKS > 2
    run rank(2); run watcher(2);
#endif
    run fate()
  }
}
