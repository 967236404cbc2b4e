"""What a user of the generated tasks may ask for: wordings and the calls that answer them.

One line of ``INTENTS`` is one intent. In a wording ``(a|b)`` is a choice and ``{slot}`` a value
(`rc_lib.tasks.world.World` says which kinds there are); a string value stands in quotes in
the wording exactly as in the call. In ``calls`` a ``;`` separates calls of one assistant message
and ``>>`` separates messages, where a later call needs what an earlier one returned.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Intent:
    """One thing a user may ask for.

    Attributes:
        name: unique name.
        backend: BFCL backend class that serves it.
        calls: calls in BFCL's syntax with slots.
        wordings: wordings seen in training; the first also in pretraining.
        unseen: a wording kept for the unseen-wording test set.
        final: True where later intents of the same backend would not find its state
            (the working directory has changed).
    """

    name: str
    backend: str
    calls: str
    wordings: tuple[str, ...]
    unseen: str
    final: bool = False


FS, MATH, MSG = "GorillaFileSystem", "MathAPI", "MessageAPI"
TICKET, TRADE, TWEET, CAR = "TicketAPI", "TradingBot", "TwitterAPI", "VehicleControlAPI"


def _intent(backend: str, name: str, calls: str, *wordings: str, final: bool = False) -> Intent:
    return Intent(name, backend, calls, wordings[:-1], wordings[-1], final)


# Each row: backend, name, calls, wordings seen in training, and last the unseen one.
# fmt: off
INTENTS: tuple[Intent, ...] = (
    _intent(FS, "mkdir", "mkdir(dir_name={new_dir})",
            "create a directory named {new_dir}",
            "make a (new folder|new directory) called {new_dir}", "set up the folder {new_dir}",
            "a folder by the name of {new_dir} has to exist here"),
    _intent(FS, "touch", "touch(file_name={new_file})",
            "create an empty file named {new_file}", "add a (blank|new) file called {new_file}",
            "make the file {new_file}", "start off an empty document under the name {new_file}"),
    _intent(FS, "move", "mv(source={file}, destination={dir})",
            "move {file} into {dir}", "put {file} (in|into) the (folder|directory) {dir}",
            "transfer {file} to {dir}", "the file {file} belongs in {dir}, so shift it there"),
    _intent(FS, "rename", "mv(source={file}, destination={new_file})",
            "rename {file} to {new_file}", "change the name of {file} to {new_file}",
            "give {file} the new name {new_file}",
            "from now on {file} should be known as {new_file}"),
    _intent(FS, "copy", "cp(source={file}, destination={dir})",
            "copy {file} into {dir}", "place a copy of {file} in the (folder|directory) {dir}",
            "duplicate {file} to {dir}", "leave a second version of {file} inside {dir}"),
    _intent(FS, "remove", "rm(file_name={file})",
            "delete the file {file}", "remove {file}", "get rid of {file}",
            "the file {file} is no longer needed, drop it"),
    _intent(FS, "write", "echo(content={text}, file_name={file})",
            "write {text} to {file}", "save the text {text} in {file}",
            "put the (words|text) {text} into the file {file}", "let {file} contain {text}"),
    _intent(FS, "read", "cat(file_name={file})",
            "show the content of {file}", "(print|display) the file {file}", "read {file} to me",
            "what stands in {file} is of interest, open it"),
    _intent(FS, "count_words", "wc(file_name={file}, mode='w')",
            "count the words in {file}", "find the number of words in {file}",
            "tell me how many words {file} has", "the word total of {file} is wanted"),
    _intent(FS, "sort", "sort(file_name={file})",
            "sort the lines of {file}", "put the lines of {file} in order",
            "show {file} sorted by line", "arrange {file} line by line alphabetically"),
    _intent(FS, "grep", "grep(file_name={file}, pattern={phrase})",
            "search {file} for {phrase}", "find the lines with {phrase} in {file}",
            "look for {phrase} in the file {file}",
            "does {file} mention {phrase} anywhere, check it"),
    _intent(FS, "diff", "diff(file_name1={file}, file_name2={file2})",
            "compare {file} with {file2}", "show the difference between {file} and {file2}",
            "diff {file} and {file2}", "point out where {file} departs from {file2}"),
    _intent(FS, "go_touch", "cd(folder={dir}); touch(file_name={new_file})",
            "go into {dir} and create the file {new_file}",
            "in the (folder|directory) {dir} add a file {new_file}",
            "enter {dir} and make {new_file} there",
            "step inside {dir} and start {new_file}", final=True),
    _intent(FS, "go_mkdir", "cd(folder={dir}); mkdir(dir_name={new_dir})",
            "go into {dir} and create the directory {new_dir}",
            "in the folder {dir} add a folder {new_dir}",
            "enter {dir} and make a directory {new_dir}",
            "step inside {dir} and set up {new_dir}", final=True),
    _intent(MATH, "add", "add(a={int}, b={int2})",
            "add {int} and {int2}", "compute the sum of {int} and {int2}",
            "what is {int} plus {int2}", "put {int} and {int2} together into one total"),
    _intent(MATH, "multiply", "multiply(a={int}, b={int2})",
            "multiply {int} by {int2}", "compute the product of {int} and {int2}",
            "what is {int} times {int2}", "work out {int} taken {int2} times"),
    _intent(MATH, "subtract", "subtract(a={int}, b={int2})",
            "subtract {int2} from {int}", "compute {int} minus {int2}",
            "take {int2} away from {int}", "lower {int} by {int2}"),
    _intent(MATH, "mean", "mean(numbers=[{int}, {int2}, {int3}])",
            "compute the mean of {int}, {int2} and {int3}", "average {int}, {int2} and {int3}",
            "find the average of {int}, {int2}, {int3}",
            "where is the middle of {int}, {int2} and {int3} on average"),
    _intent(MATH, "add_then_multiply", "add(a={int}, b={int2}) >> multiply(a={sum}, b={small})",
            "add {int} and {int2}, then multiply the result by {small}",
            "sum {int} and {int2} and take the result times {small}",
            "compute {int} plus {int2} and multiply that by {small}",
            "put {int} and {int2} together and scale the outcome by {small}"),
    _intent(MSG, "send", "send_message(receiver_id={user_id}, message={text})",
            "send {text} to user {user_id}", "message {user_id} with the text {text}",
            "write to {user_id} saying {text}", "let the user {user_id} know that {text}"),
    _intent(MSG, "send_by_name",
            "get_user_id(user={person}) >> send_message(receiver_id={person_id}, message={text})",
            "find the id of {person} and send {text} to that user",
            "look up {person} and message them {text}",
            "get the user id of {person}, then send the message {text}",
            "let {person}, whose id you have to ask for, know that {text}"),
    _intent(MSG, "contact", "add_contact(user_name={new_person})",
            "add {new_person} to the contacts", "create a contact for {new_person}",
            "make {new_person} a new contact", "bring {new_person} into the address book"),
    _intent(MSG, "search", "search_messages(keyword={phrase})",
            "search the messages for {phrase}", "find messages about {phrase}",
            "look for {phrase} in my messages",
            "has anybody written about {phrase}, check the messages"),
    _intent(MSG, "unsend", "delete_message(receiver_id={receiver_id})",
            "delete the last message to {receiver_id}",
            "remove my latest message to user {receiver_id}",
            "take back the message sent to {receiver_id}",
            "whatever went last to {receiver_id} should vanish"),
    _intent(TICKET, "ticket", "create_ticket(title={title}, priority={level})",
            "create a ticket titled {title} with priority {level}",
            "open a priority {level} ticket called {title}",
            "file a ticket {title} and give it priority {level}",
            "there is an issue, {title}, log it at level {level}"),
    _intent(TICKET, "close", "close_ticket(ticket_id={ticket})",
            "close ticket {ticket}", "mark the ticket {ticket} as closed",
            "shut ticket number {ticket}", "nothing is left to do on {ticket}, so end that ticket"),
    _intent(TICKET, "resolve", "resolve_ticket(ticket_id={ticket}, resolution={text})",
            "resolve ticket {ticket} with the resolution {text}",
            "mark ticket {ticket} as resolved, noting {text}",
            "set ticket {ticket} to resolved because of {text}",
            "the answer to ticket {ticket} is {text}, record that"),
    _intent(TICKET, "priority", "edit_ticket(ticket_id={ticket}, updates={{'priority': {level}}})",
            "change the priority of ticket {ticket} to {level}",
            "set ticket {ticket} to priority {level}",
            "update ticket {ticket} so that its priority is {level}",
            "let ticket {ticket} run at level {level}"),
    _intent(TICKET, "look", "get_ticket(ticket_id={ticket})",
            "show ticket {ticket}", "get the details of ticket {ticket}",
            "look up ticket number {ticket}", "what is known about ticket {ticket}, list it"),
    _intent(TICKET, "ticket_close",
            "create_ticket(title={title}, priority={level}) >> "
            "close_ticket(ticket_id={next_ticket})",
            "create a ticket titled {title} with priority {level} and close it",
            "open a priority {level} ticket called {title}, then close that ticket",
            "file the ticket {title} at priority {level} and mark it as closed",
            "log {title} at level {level} and end that ticket right away"),
    _intent(TRADE, "buy",
            "place_order(order_type='Buy', symbol={stock}, price={price}, amount={int})",
            "buy {int} shares of {stock} at {price}",
            "place an order to buy {int} of {stock} for {price} each",
            "purchase {int} {stock} shares at a price of {price}",
            "get hold of {int} units of {stock} paying {price}"),
    _intent(TRADE, "sell",
            "place_order(order_type='Sell', symbol={stock}, price={price}, amount={int})",
            "sell {int} shares of {stock} at {price}",
            "place an order to sell {int} of {stock} for {price} each",
            "put {int} {stock} shares up for sale at {price}",
            "let go of {int} units of {stock} asking {price}"),
    _intent(TRADE, "buy_market",
            "get_stock_info(symbol={stock}) >> "
            "place_order(order_type='Buy', symbol={stock}, price={stock_price}, amount={int})",
            "check the price of {stock} and buy {int} shares at that price",
            "look up {stock}, then place an order to buy {int} at the current price",
            "get the info of {stock} and purchase {int} shares at its price",
            "see what {stock} costs and get hold of {int} units for it"),
    _intent(TRADE, "cancel", "cancel_order(order_id={order})",
            "cancel order {order}", "call off the order {order}", "stop the order with id {order}",
            "order {order} should not go through"),
    _intent(TRADE, "watch", "add_to_watchlist(stock={stock})",
            "add {stock} to the watchlist", "put {stock} on my watchlist",
            "start watching the stock {stock}", "keep an eye on {stock} for me"),
    _intent(TRADE, "unwatch", "remove_stock_from_watchlist(symbol={watched})",
            "remove {watched} from the watchlist", "take {watched} off my watchlist",
            "stop watching the stock {watched}", "no need to keep an eye on {watched} any more"),
    _intent(TRADE, "fund", "fund_account(amount={int})",
            "fund the account with {int}", "deposit {int} into my account",
            "add {int} to the account balance", "my account should hold {int} more"),
    _intent(TRADE, "quote", "get_stock_info(symbol={stock})",
            "show the stock info of {stock}", "get the price of {stock}",
            "look up the stock {stock}", "how is {stock} doing, report it"),
    _intent(TWEET, "post", "post_tweet(content={text}, tags=[{tag}])",
            "post a tweet {text} with the tag {tag}", "tweet {text} and tag it {tag}",
            "publish {text} on twitter under the tag {tag}",
            "share the news {text} marked as {tag}"),
    _intent(TWEET, "retweet", "retweet(tweet_id={tweet})",
            "retweet the tweet {tweet}", "share tweet number {tweet} again",
            "repost the tweet with id {tweet}", "pass on {tweet} to my own followers"),
    _intent(TWEET, "comment", "comment(tweet_id={tweet}, comment_content={text})",
            "comment {text} on tweet {tweet}", "reply to tweet {tweet} with {text}",
            "add the comment {text} to the tweet {tweet}", "leave the remark {text} below {tweet}"),
    _intent(TWEET, "mention", "mention(tweet_id={tweet}, mentioned_usernames=[{handle}])",
            "mention {handle} in tweet {tweet}", "add a mention of {handle} to the tweet {tweet}",
            "tag the user {handle} in tweet {tweet}", "bring {handle} into the tweet {tweet}"),
    _intent(TWEET, "follow", "follow_user(username_to_follow={handle})",
            "follow the user {handle}", "start following {handle}",
            "add {handle} to the people I follow", "I want to hear from {handle}"),
    _intent(TWEET, "unfollow", "unfollow_user(username_to_unfollow={followed})",
            "unfollow the user {followed}", "stop following {followed}",
            "remove {followed} from the people I follow", "I have had enough of {followed}"),
    _intent(CAR, "fuel", "fillFuelTank(fuelAmount={small})",
            "fill the fuel tank with {small} gallons", "add {small} gallons of fuel",
            "refuel the car by {small} gallons", "the car needs {small} gallons more"),
    _intent(CAR, "navigate", "set_navigation(destination={city})",
            "set the navigation to {city}", "navigate to {city}", "plan the route to {city}",
            "we are going to {city}, guide us"),
    _intent(CAR, "climate", "adjustClimateControl(temperature={small}, fanSpeed={fan})",
            "set the climate to {small} degrees with fan speed {fan}",
            "adjust the air to {small} degrees and the fan to {fan}",
            "make it {small} degrees in the car at fan speed {fan}",
            "let the cabin reach {small} with the fan at {fan}"),
    _intent(CAR, "lights_on", "setHeadlights(mode='on')",
            "turn on the headlights", "switch the headlights on", "put the lights of the car on",
            "it is getting dark, so light the road"),
    _intent(CAR, "brake", "activateParkingBrake(mode='engage')",
            "engage the parking brake", "put the parking brake on", "activate the parking brake",
            "see to it that the parked car cannot roll"),
    _intent(CAR, "start", "pressBrakePedal(pedalPosition=1.0); startEngine(ignitionMode='START')",
            "press the brake fully and start the engine",
            "start the engine with the brake pressed down",
            "hold the brake pedal down and start the car",
            "bring the motor to life while standing on the brake"),
    _intent(CAR, "status", "displayCarStatus(option={part})",
            "show the {part} status of the car", "display the car status for {part}",
            "check the {part} status", "how are things with the {part} of the car"),
)
# fmt: on
