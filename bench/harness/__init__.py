"""What benches are made of: servers, peers, oracles, faults, bars."""
