package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestControl joins both ends, a byte at a time.
func TestControl(t *testing.T) {
	token, session := NewToken(), filled[[16]byte](0x60)
	client, first := newMeasuring(token, filled[[16]byte](1))
	require.Len(t, first, openingSize)
	server, toClient := newServing(token, filled[[16]byte](2), session)
	var atServer, atClient []message
	var toServer []byte
	pump := func() {
		for len(toClient)+len(toServer) > 0 {
			a, b := toClient, toServer
			toClient, toServer = nil, nil
			for i := range a {
				out, err := client.receive(a[i:i+1], func(m message) { atClient = append(atClient, m) })
				require.NoError(t, err)
				toServer = append(toServer, out...)
			}
			for i := range b {
				out, err := server.receive(b[i:i+1], func(m message) { atServer = append(atServer, m) })
				require.NoError(t, err)
				toClient = append(toClient, out...)
			}
		}
	}
	pump()
	require.Len(t, atServer, 1)
	toClient = server.welcome("a note")
	pump()
	require.Equal(t, "a note", atClient[0].(welcome).note)
	require.Equal(t, session, client.session)
	toServer = appendMessage(nil, sample{9})
	pump()
	require.Equal(t, sample{9}, atServer[1])
	toClient = appendMessage(nil, reading{id: 9})
	pump()
	require.Equal(t, reading{id: 9}, atClient[1])
}

func TestControlWrongToken(t *testing.T) {
	client, _ := newMeasuring(NewToken(), filled[[16]byte](1))
	server, out := newServing(NewToken(), filled[[16]byte](2), [16]byte{})
	none := func(m message) { t.Errorf("got %T", m) }
	out, err := client.receive(out, none)
	require.NoError(t, err)
	out, err = server.receive(out, none)
	require.ErrorIs(t, err, ErrProtocol)
	_, err = client.receive(out, none)
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "smcgw bench --serve")

	// A server that knows it as little is not believed.
	client, _ = newMeasuring(NewToken(), filled[[16]byte](1))
	_, err = client.receive(appendMessage(nil, challenge{}), none)
	require.NoError(t, err)
	_, err = client.receive(appendMessage(nil, welcome{}), none)
	require.ErrorIs(t, err, ErrProtocol)
}

// TestControlModel feeds both ends any messages: they are open only after the
// right proof, closed after the first message that is out of place, and then
// silent.
func TestControlModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token, nonce, theirs := Token{1}, [16]byte{2}, [16]byte{3}
		server := rapid.Bool().Draw(t, "server")
		var c *control
		state := stateGreeting
		if server {
			c, _ = newServing(token, nonce, [16]byte{4})
			state = stateChallenged
		} else {
			c, _ = newMeasuring(token, nonce)
		}
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			right := rapid.Bool().Draw(t, "right")
			m := rapid.SampledFrom([]message{challenge{theirs}, hello{nonce: theirs}, welcome{}, sample{1}, reading{id: 1}, weigh{1}, weight{id: 1}, refusal{1, "x"}}).Draw(t, "message")
			switch v := m.(type) {
			case hello:
				if right {
					v.proof = token.proof(measuring, nonce, theirs)
				}
				m = v
			case welcome:
				if right {
					v.proof = token.proof(serving, theirs, nonce)
				}
				m = v
			}
			next := stateClosed
			switch k := m.kind(); {
			case state == stateClosed:
			case k == typeHello && state == stateChallenged && right:
				next = stateOpen
			case k == typeChallenge && state == stateGreeting:
				next = stateProving
			case k == typeWelcome && state == stateProving && right:
				next = stateOpen
			case (k == typeSample || k == typeReading || k == typeWeigh || k == typeWeight) && state == stateOpen:
				next = stateOpen
			}
			was := state
			state = next
			got := 0
			_, err := c.receive(appendMessage(nil, m), func(message) { got++ })
			require.Equal(t, state, c.state)
			require.Equal(t, state == stateClosed && was != stateClosed, err != nil)
			require.Equal(t, state == stateOpen, got == 1)
		}
	})
}
