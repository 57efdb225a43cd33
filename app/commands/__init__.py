"""The commands. options/ defines their options; bodies that only print are here, the others in rooms of their own."""
